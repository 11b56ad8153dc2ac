// The part of Foundation that PyTorch's headers and the overlay's host code use, declared anew.
#pragma once

#include <dispatch/dispatch.h>
#include <objc/objc.h>
#include <stddef.h>
#include <stdint.h>

typedef long NSInteger;
typedef unsigned long NSUInteger;

#define NS_ENUM(type, name) enum name : type name; enum name : type
#define NS_OPTIONS(type, name) enum name : type name; enum name : type

@class NSString;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (instancetype)autorelease;
- (NSUInteger)retainCount;
@end

@protocol NSCopying
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject> {
  Class isa;
}
+ (instancetype)alloc;
+ (instancetype)new;
- (instancetype)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject {
  NSUInteger _begin;
}
- (void)drain;
@end

@interface NSString : NSObject <NSCopying>
@property(readonly) const char* UTF8String;
@property(readonly) NSUInteger length;
@end

// The class of @"" literals, which the compiler lays out.
@interface NSConstantString : NSString {
  const char* _text;
  unsigned _length;
}
@end

@interface NSNumber : NSObject <NSCopying>
+ (NSNumber*)numberWithBool:(BOOL)value;
+ (NSNumber*)numberWithInt:(int)value;
+ (NSNumber*)numberWithUnsignedInt:(unsigned)value;
+ (NSNumber*)numberWithLong:(long)value;
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)value;
+ (NSNumber*)numberWithLongLong:(long long)value;
+ (NSNumber*)numberWithFloat:(float)value;
+ (NSNumber*)numberWithDouble:(double)value;
@property(readonly) NSInteger integerValue;
@end

@interface NSArray<__covariant Element> : NSObject <NSCopying>
+ (instancetype)arrayWithObjects:(const Element*)objects count:(NSUInteger)count;
- (Element)objectAtIndexedSubscript:(NSUInteger)index;
@property(readonly) NSUInteger count;
@end

@interface NSDictionary<__covariant Key, __covariant Value> : NSObject <NSCopying>
+ (instancetype)dictionaryWithObjects:(const Value*)objects forKeys:(const Key<NSCopying>*)keys count:(NSUInteger)count;
- (Value)objectForKeyedSubscript:(Key)key;
@property(readonly) NSUInteger count;
@end

@interface NSError : NSObject
@property(readonly) NSString* localizedDescription;
@end
