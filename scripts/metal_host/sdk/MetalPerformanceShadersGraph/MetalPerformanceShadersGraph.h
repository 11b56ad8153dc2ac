// The part of MPSGraph that PyTorch's headers use, declared anew. The overlay's operators use none of it.
#pragma once

#include <MetalPerformanceShaders/MetalPerformanceShaders.h>

@interface MPSGraphObject : NSObject
@end

@interface MPSGraph : MPSGraphObject
@end

@interface MPSGraphTensor : MPSGraphObject <NSCopying>
@end

@interface MPSGraphTensorData : MPSGraphObject
@end

@interface MPSGraphExecutionDescriptor : MPSGraphObject
@end

@interface MPSGraphCompilationDescriptor : MPSGraphObject
@end
