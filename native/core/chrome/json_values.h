// Converts JSON values: texts without escapes, times as whole nanoseconds, numbers, and minified values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kinetoscope {

// The inside of a raw string; any other raw value unchanged.
std::string_view inside_quotes(std::string_view raw);

// Appends the decoded inside of a JSON string. Pairs of \u escapes become one character, lone surrogates
// their three-byte form; an invalid escape is kept as it is.
void append_unescaped(std::string_view inside, std::string& out);

// The integer in a raw value, a JSON number or a string with one; nullopt if there is none, or it does not
// fit.
std::optional<int64_t> integer_of(std::string_view raw);
std::optional<double> real_of(std::string_view raw);
// Like integer_of, for values that are written signed or unsigned, such as addresses.
std::optional<uint64_t> address_of(std::string_view raw);

// Microseconds with a fraction as nanoseconds, rounded where there are more than three decimals; exact up to
// nine digits beyond what a double keeps.
std::optional<int64_t> nanoseconds_of(std::string_view raw);

// Appends a raw value without the whitespace in it.
void append_minified(std::string_view raw, std::string& out);

}  // namespace kinetoscope
