// Sizes that the reader of Chrome traces works in. Fuzzing makes them small: what happens at their borders is
// met by small texts then, and a reader costs little.
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
// One that is longer and not yet whole is looked at again when twice as much of it is there.
inline constexpr std::size_t kShortValue = std::size_t{1} << 12;
// A value that is longer than this is passed over. One that never ends, because a quote in it was not
// escaped, looks as long as the rest of the file; each such mistake makes us believe less in long values.
inline constexpr std::size_t kLargestValue = std::size_t{64} << 20, kLeastLargestValue = std::size_t{1} << 20;
inline constexpr std::size_t kLargestHeader = std::size_t{64} << 20;
inline constexpr std::size_t kTextBlockBytes = std::size_t{1} << 15;
// So many texts are looked at for whether they repeat. Their table is as large as possible then.
inline constexpr std::size_t kRecentTexts = std::size_t{1} << 15;
// Text that is mere brackets makes every way on fail at its very end. So much is looked at again, no more.
inline constexpr std::size_t kMostLookedAtAgain = std::size_t{256} << 20;
#endif

}  // namespace kinetoscope
