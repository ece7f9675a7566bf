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
#include "builtin.h"

namespace kinetoscope {

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

class ChromeReader;
struct ChromeOrder;
// Moves the rows out of the reader; with `later`, columns that only some callers need are functions that make
// them.
nb::dict chrome_parts(ChromeReader& reader, ChromeOrder& order, bool later);

void bind_recording(nb::module_& module);
void bind_chrome_writer(nb::module_& module);
void bind_chrome_reader(nb::module_& module);

}  // namespace kinetoscope
