// What JSON values mean: texts without their escapes, times as whole nanoseconds, numbers, and values made
// small.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kinetoscope {

// What stands between the quotes of a raw string; any other raw value as it is.
std::string_view inside_quotes(std::string_view raw);

// Appends what stands between the quotes of a JSON string. Pairs of \u escapes become one character, lone
// surrogates their three-byte form; a broken escape is kept as it stands.
void append_unescaped(std::string_view inside, std::string& out);

// The number in a raw value, a JSON number or a string that holds one; nothing where it is none, or does not
// fit.
std::optional<int64_t> integer_of(std::string_view raw);
std::optional<double> real_of(std::string_view raw);
// Like integer_of for what is written signed or unsigned, as addresses are.
std::optional<uint64_t> address_of(std::string_view raw);

// Microseconds with a fraction as nanoseconds, rounded where there are more than three decimals; exact up to
// nine digits beyond what a double keeps.
std::optional<int64_t> nanoseconds_of(std::string_view raw);

// Appends a raw value without the spaces between its parts.
void append_minified(std::string_view raw, std::string& out);

}  // namespace kinetoscope
