// The part of Metal Performance Shaders that PyTorch's headers use, declared anew.
#pragma once

#include <Metal/Metal.h>

typedef NSArray<NSNumber*> MPSShape;

typedef NS_ENUM(uint32_t, MPSDataType) {
  MPSDataTypeInvalid = 0,
};

@interface MPSKernel : NSObject <NSCopying>
@end

@interface MPSNDArray : NSObject
@end

@interface MPSCommandBuffer : NSObject <MTLCommandBuffer>
@end
