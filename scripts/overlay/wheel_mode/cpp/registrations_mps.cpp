// The generated registrations of Metal kernels for operators that torch has, of which it has kernels for a few, too.
#include "override_is_meant.h"

#include <optional>

// Objects of one source are made in their order.
static std::optional<OverrideIsMeant> override_is_meant(std::in_place);

#include <RegisterMPS.cpp>

[[maybe_unused]] static const bool others_are_not = [] {
  override_is_meant.reset();
  return true;
}();
