// The wheel has ATen/functorch/Interpreter.h, but not the header-only library that it includes. Its inline functions
// name these; nothing in the overlay calls them, so declarations are enough.
#pragma once
#include <string>

namespace nlohmann {

struct json {
  json() = default;
  template <typename T>
  explicit json(const T& value);
  template <typename T>
  T get() const;
  std::string dump() const;
  static json parse(const std::string& text);
};

} // namespace nlohmann
