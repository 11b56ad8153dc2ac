// For registrations that take the place of torch's own, of which the dispatcher warns.
#pragma once

#include <c10/util/Exception.h>

#include <string>

// While there is one, that warning is dropped. Any other is passed on.
class OverrideIsMeant {
  class Handler : public c10::WarningHandler {
   public:
    void process(const c10::Warning& warning) override {
      if (warning.msg().find("Overriding a previously registered kernel") == std::string::npos) {
        others_->process(warning);
      }
    }

   private:
    c10::WarningHandler* others_ = c10::WarningUtils::get_warning_handler();
  };

  Handler handler_;
  c10::WarningUtils::WarningHandlerGuard guard_{&handler_};
  c10::WarningUtils::WarnAlways always_; // else the next override, another's, would not be warned of
};
