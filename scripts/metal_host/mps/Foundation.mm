// The classes of sdk/Foundation that host code of kernels uses.
#include <Foundation/Foundation.h>

#include "objc_runtime.h"

#include <vector>

namespace {

std::vector<id>& autoreleased() {
  static thread_local std::vector<id> objects;
  return objects;
}

} // namespace

@implementation NSObject
+ (instancetype)alloc {
  return metal_host_create_object(self);
}
+ (instancetype)new {
  return [[self alloc] init];
}
- (instancetype)init {
  return self;
}
- (instancetype)retain {
  ++*metal_host_retains(self);
  return self;
}
- (oneway void)release {
  if (--*metal_host_retains(self) == 0) {
    [self dealloc];
  }
}
- (instancetype)autorelease {
  autoreleased().push_back(self);
  return self;
}
- (NSUInteger)retainCount {
  return *metal_host_retains(self);
}
- (void)dealloc {
  metal_host_destroy_object(self);
}
@end

@implementation NSAutoreleasePool
- (instancetype)init {
  _begin = autoreleased().size();
  return [super init];
}
// What pools within this one left behind goes too: an exception does not drain them.
- (void)drain {
  auto& objects = autoreleased();
  while (objects.size() > _begin) {
    const id object = objects.back();
    objects.pop_back();
    [object release];
  }
  [self release];
}
@end

@implementation NSString
@dynamic UTF8String;
@dynamic length;
@end

@implementation NSConstantString
- (instancetype)retain {
  return self;
}
- (oneway void)release {
}
- (const char*)UTF8String {
  return _text;
}
- (NSUInteger)length {
  return _length;
}
@end
