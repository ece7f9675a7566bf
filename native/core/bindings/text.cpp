#include <string>

#include "../chrome/json.h"
#include "module.h"

namespace kinetoscope {
nb::str to_str(std::string_view text) {
  if (PyObject* plain = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr)) {
    return nb::steal<nb::str>(plain);
  }
  if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) nb::raise_python_error();
  PyErr_Clear();
  const std::u32string decoded = decode_text(text);
  // Two halves of a surrogate pair stay two: "surrogatepass" of UTF-32 keeps each unit as it is.
  int little_endian = -1;
  PyObject* str = PyUnicode_DecodeUTF32(reinterpret_cast<const char*>(decoded.data()),
                                        static_cast<Py_ssize_t>(decoded.size() * sizeof(char32_t)),
                                        "surrogatepass", &little_endian);
  if (str == nullptr) nb::raise_python_error();
  return nb::steal<nb::str>(str);
}

std::string to_utf8(nb::handle str) {
  if (!PyUnicode_Check(str.ptr())) throw nb::type_error("expected a str");
  PyObject* encoded = PyUnicode_AsEncodedString(str.ptr(), "utf-8", "surrogatepass");
  if (encoded == nullptr) nb::raise_python_error();
  const nb::bytes bytes = nb::steal<nb::bytes>(encoded);
  return std::string(bytes.c_str(), bytes.size());
}

std::vector<std::string> to_utf8_list(nb::handle sequence, const char* argument) {
  if (!nb::isinstance<nb::list>(sequence) && !nb::isinstance<nb::tuple>(sequence)) {
    throw nb::type_error((std::string(argument) + " must be a list or tuple of str").c_str());
  }
  std::vector<std::string> texts;
  texts.reserve(nb::len(sequence));
  for (const nb::handle text : sequence) texts.push_back(to_utf8(text));
  return texts;
}

nb::list to_str_list(std::span<const std::string_view> texts) {
  nb::list list;
  for (const std::string_view text : texts) list.append(to_str(text));
  return list;
}

}  // namespace kinetoscope
