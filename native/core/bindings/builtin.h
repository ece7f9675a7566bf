// Functions of an extension module that inspect, help() and stubtest can read.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace kinetoscope {

namespace nb = nanobind;

// Appends a parameter as inspect shows it; every default is None.
template <typename Argument>
void append_argument(std::string& signature, const Argument& argument) {
  if (signature.back() != '(') signature += ", ";
  signature += argument.name_;
  if constexpr (requires { argument.value; }) signature += "=None";
}

// Adds `callable` to the module as a builtin function with this signature and documentation.
void define_builtin(nb::module_& module, const char* name, const std::string& signature, const char* doc,
                    const nb::object& callable);

// Defines a function of the module. nanobind's own function objects are opaque to inspect, help() and
// stubtest; a builtin function that forwards its calls is not.
template <typename Function, typename... Arguments>
void define(nb::module_& module, const char* name, Function function, const char* doc,
            Arguments... arguments) {
  std::string signature = std::string(name) + "(";
  (append_argument(signature, arguments), ...);
  define_builtin(module, name, signature + ")", doc,
                 nb::cpp_function(function, nb::name(name), arguments...));
}

}  // namespace kinetoscope
