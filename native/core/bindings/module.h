// Conversions between numpy arrays and spans, and between Python strings and UTF-8.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../columns/column.h"

namespace kinetoscope {

namespace nb = nanobind;

template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> view(const Array<T>& array) {
  return {array.data(), array.shape(0)};
}

// A numpy array that owns the column's memory from now on.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_array(Column<T>&& column) {
  const std::size_t size = column.size();
  T* data = column.release();
  if (data == nullptr) data = Column<T>(0).release();
  nb::capsule owner(data, [](void* memory) noexcept { std::free(memory); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

// Lone surrogates survive in both directions; other bytes that are not UTF-8 become U+FFFD.
nb::str to_str(std::string_view text);
std::string to_utf8(nb::handle str);
// A list or tuple of str.
std::vector<std::string> to_utf8_list(nb::handle sequence, const char* argument);
nb::list to_str_list(std::span<const std::string_view> texts);

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

class ChromeReader;
struct ChromeOrder;
// Moves the rows out of the reader; with `later`, columns that only some callers need are functions that make
// them.
nb::dict chrome_parts(ChromeReader& reader, ChromeOrder& order, bool later);

void bind_living(nb::module_& module);
void bind_recording(nb::module_& module);
void bind_step_count(nb::module_& module);
void bind_followed(nb::module_& module);
void bind_chrome_writer(nb::module_& module);
void bind_chrome_reader(nb::module_& module);

}  // namespace kinetoscope
