// As much of an Objective-C runtime, for the ABI of clang's -fobjc-runtime=gcc, and of a blocks runtime as host code
// needs. Unlike a real one it can send messages to objects that have no memory of their own: buffers of the device.
#include "memory.h"

#include <unwind.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

// ---- What the compiler lays out ------------------------------------------------------------

using Method = void (*)();

struct Selector {
  const char* name; // unique after loading
  const char* types;
};

struct MethodList {
  MethodList* next;
  int count;
  struct {
    const char* name;
    const char* types;
    Method method;
  } methods[1];
};

struct Class {
  Class* meta;
  Class* super; // the name of one until it is resolved
  const char* name;
  long version;
  unsigned long info;
  long instance_size;
  void* instance_variables;
  MethodList* methods;
  // and more that is not used here
};

struct Object {
  Class* isa;
};

struct alignas(16) Header {
  std::atomic<size_t> retains{1};
};

struct Category {
  const char* name;
  const char* class_name;
  MethodList* methods;
  MethodList* class_methods;
};

struct ConstantStrings {
  const char* class_name;
  Object* instances[1];
};

struct Symbols {
  unsigned long selector_count;
  Selector* selectors;
  unsigned short class_count;
  unsigned short category_count;
  void* definitions[1]; // classes, categories, then a list of ConstantStrings*
};

struct Module {
  unsigned long version;
  unsigned long size;
  const char* name;
  Symbols* symbols;
};

// ---- Classes and methods -------------------------------------------------------------------

constexpr auto kBufferClass = "MetalHostBuffer"; // of the handles of memory.h

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "Objective-C: %s\n", message.c_str());
  std::abort();
}

class Runtime {
 public:
  static Runtime& instance() {
    static auto* runtime = new Runtime;
    return *runtime;
  }

  void load(const Module& module) {
    const std::unique_lock lock(mutex_);
    const auto& symbols = *module.symbols;
    for (auto* selector = symbols.selectors; selector != nullptr && selector->name != nullptr; ++selector) {
      selector->name = unique(selector->name);
    }
    // The compiler hangs the protocols of a file on a category without methods.
    for (int i = 0; i < symbols.category_count; ++i) {
      const auto& category = *static_cast<Category*>(symbols.definitions[symbols.class_count + i]);
      for (const auto* list : {category.methods, category.class_methods}) {
        if (list != nullptr && list->count != 0) {
          fail(std::string("categories are not simulated, but ") + category.class_name + " has one");
        }
      }
    }
    for (int i = 0; i < symbols.class_count; ++i) {
      auto* cls = static_cast<Class*>(symbols.definitions[i]);
      classes_[cls->name] = cls;
      unresolved_.insert(cls);
    }
    auto** strings = static_cast<ConstantStrings**>(symbols.definitions[symbols.class_count + symbols.category_count]);
    for (; strings != nullptr && *strings != nullptr; ++strings) {
      for (auto** object = (*strings)->instances; *object != nullptr; ++object) {
        constants_.emplace_back((*strings)->class_name, *object);
      }
    }
    for (auto& [name, object] : constants_) {
      if (const auto found = classes_.find(name); found != classes_.end()) {
        object->isa = found->second;
      }
    }
  }

  Class* find_class(const char* name) {
    const std::shared_lock lock(mutex_);
    const auto found = classes_.find(name);
    return found == classes_.end() ? nullptr : found->second;
  }

  Class* class_of(const Object* object) {
    return metal_host::is_handle(object) ? buffer_class() : object->isa;
  }

  Method find_method(Class* cls, const Selector& selector) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = cache_.find({cls, selector.name}); found != cache_.end()) {
        return found->second;
      }
    }
    const std::unique_lock lock(mutex_);
    for (auto* owner = cls; owner != nullptr; owner = super_of(owner)) {
      for (auto* list = owner->methods; list != nullptr; list = list->next) {
        for (int i = 0; i < list->count; ++i) {
          if (std::strcmp(list->methods[i].name, selector.name) == 0) {
            return cache_[{cls, selector.name}] = list->methods[i].method;
          }
        }
      }
    }
    fail(std::string(cls->name) + " does not respond to " + selector.name);
  }

 private:
  // The compiler leaves it out of metaclasses: it is the super's metaclass, and for a root class the class itself.
  Class* super_of(Class* cls) {
    auto* named = classes_.at(cls->name);
    if (unresolved_.erase(named) != 0 && named->super != nullptr) {
      const auto* name = reinterpret_cast<const char*>(named->super);
      const auto found = classes_.find(name);
      if (found == classes_.end()) {
        fail(std::string("no class ") + name);
      }
      named->super = found->second;
    }
    if (cls == named) {
      return cls->super;
    }
    return named->super == nullptr ? named : named->super->meta;
  }

  Class* buffer_class() {
    static auto* cls = find_class(kBufferClass);
    return cls;
  }

  const char* unique(const char* name) {
    return names_.insert(name).first->c_str();
  }

  struct Hash {
    size_t operator()(const std::pair<Class*, const char*>& key) const {
      return std::hash<void*>()(key.first) * 31 + std::hash<const void*>()(key.second);
    }
  };

  std::shared_mutex mutex_;
  std::unordered_set<std::string> names_;
  std::map<std::string, Class*> classes_;
  std::unordered_set<Class*> unresolved_;
  std::vector<std::pair<const char*, Object*>> constants_;
  std::unordered_map<std::pair<Class*, const char*>, Method, Hash> cache_;
};

void* nothing() {
  return nullptr;
}

} // namespace

extern "C" {

// Exceptions are those of C++.
_Unwind_Reason_Code __gxx_personality_v0(
    int, _Unwind_Action, _Unwind_Exception_Class, _Unwind_Exception*, _Unwind_Context*);
_Unwind_Reason_Code __gnu_objc_personality_v0(
    int version,
    _Unwind_Action actions,
    _Unwind_Exception_Class exception_class,
    _Unwind_Exception* exception,
    _Unwind_Context* context) {
  return __gxx_personality_v0(version, actions, exception_class, exception, context);
}

void __objc_exec_class(Module* module) {
  Runtime::instance().load(*module);
}

Method objc_msg_lookup(Object* receiver, const Selector* selector) {
  if (receiver == nullptr) {
    return reinterpret_cast<Method>(&nothing);
  }
  auto& runtime = Runtime::instance();
  return runtime.find_method(runtime.class_of(receiver), *selector);
}

struct Super {
  Object* receiver;
  Class* cls;
};

Method objc_msg_lookup_super(const Super* super, const Selector* selector) {
  return Runtime::instance().find_method(super->cls, *selector);
}

Class* objc_lookup_class(const char* name) {
  auto* cls = Runtime::instance().find_class(name);
  return cls == nullptr ? fail(std::string("no class ") + name), nullptr : cls;
}

Class* objc_get_class(const char* name) {
  return objc_lookup_class(name);
}

// See objc_runtime.h.
Object* metal_host_create_object(Class* cls) {
  auto* memory = static_cast<char*>(std::calloc(1, sizeof(Header) + static_cast<size_t>(cls->instance_size)));
  new (memory) Header;
  auto* object = reinterpret_cast<Object*>(memory + sizeof(Header));
  object->isa = cls;
  return object;
}

std::atomic<size_t>* metal_host_retains(Object* object) {
  return &reinterpret_cast<Header*>(reinterpret_cast<char*>(object) - sizeof(Header))->retains;
}

void metal_host_destroy_object(Object* object) {
  std::free(reinterpret_cast<char*>(object) - sizeof(Header));
}

// ---- Blocks, which never leave the function that they are written in ------------------------

void* _NSConcreteStackBlock[32];
void* _NSConcreteGlobalBlock[32];

void _Block_object_assign(void*, const void*, int) {
  fail("blocks that are copied are not simulated");
}

void _Block_object_dispose(const void*, int) {}
}
