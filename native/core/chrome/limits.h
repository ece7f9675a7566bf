// Sizes that the reader of Chrome traces works with. Fuzzing makes them small, so that short texts reach
// their limits and a reader is cheap.
#pragma once

#include <cstddef>

namespace kinetoscope {

#ifdef KINETOSCOPE_FUZZING
inline constexpr std::size_t kChunkRows = 4, kPackedRows = 64, kPackedChunkBytes = 1024;
inline constexpr std::size_t kFirstBuffer = 128, kShortValue = 48;
inline constexpr std::size_t kLargestValue = 1024, kLeastLargestValue = 256;
inline constexpr std::size_t kLargestHeader = 512;
inline constexpr std::size_t kTextBlockBytes = 96, kRecentTexts = 16;
inline constexpr std::size_t kMostLookedAtAgain = std::size_t{64} << 10;
#else
inline constexpr std::size_t kChunkRows = std::size_t{1} << 16;
inline constexpr std::size_t kPackedRows = 128, kPackedChunkBytes = std::size_t{1} << 18;
inline constexpr std::size_t kFirstBuffer = std::size_t{1} << 20;
// A longer, still incomplete value is scanned again only after twice as much of it has arrived.
inline constexpr std::size_t kShortValue = std::size_t{1} << 12;
// A longer value is skipped. A value that never ends, because a quote in it was not escaped, looks as long as
// the rest of the file; each such mistake lowers the limit.
inline constexpr std::size_t kLargestValue = std::size_t{64} << 20, kLeastLargestValue = std::size_t{1} << 20;
inline constexpr std::size_t kLargestHeader = std::size_t{64} << 20;
inline constexpr std::size_t kTextBlockBytes = std::size_t{1} << 15;
// The number of texts that are checked for repetition. Their table has its largest size then.
inline constexpr std::size_t kRecentTexts = std::size_t{1} << 15;
// In text of brackets only, every attempt fails at its very end. This much is scanned again, no more.
inline constexpr std::size_t kMostLookedAtAgain = std::size_t{256} << 20;
#endif

}  // namespace kinetoscope
