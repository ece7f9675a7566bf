// Columns that grow, on random rows and numbers, against a plain list of them.
#include "core/columns/growing_column.h"

#include <bit>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "check.h"

namespace kinetoscope {
namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();

class Pair {
 public:
  explicit Pair(int64_t none) : packed_(none), none_(none) {}

  void set(std::size_t row, int64_t value) {
    if (row >= plain_.size()) plain_.resize(row + 1, none_);
    plain_[row] = value;
    some_ |= value != none_;
    packed_.set(row, value);
  }
  bool equal() const {
    bool same = packed_.empty() == !some_;
    for (std::size_t row = 0; row < plain_.size(); ++row) same &= packed_[row] == plain_[row];
    return same && packed_[plain_.size()] == none_ && packed_[plain_.size() + 10 * kPackedRows] == none_;
  }
  std::size_t rows() const { return plain_.size(); }
  const PackedColumn& packed() const { return packed_; }

 private:
  PackedColumn packed_;
  std::vector<int64_t> plain_;
  int64_t none_;
  bool some_ = false;
};

// Numbers of which those of a block are as far apart as `width` bits allow, and some are `none`.
int64_t number(std::mt19937_64& random, unsigned width, int64_t none) {
  if (random() % 8 == 0) return none;
  const uint64_t distance = width == 0 ? 0 : random() >> (64 - width);
  return static_cast<int64_t>(static_cast<uint64_t>(none) + 17 + distance);
}

void all_widths() {
  std::mt19937_64 random(1);
  for (unsigned width = 0; width <= 64; ++width) {
    for (const int64_t none : {int64_t{0}, int64_t{-1}, kLeast, kMost}) {
      Pair pair(none);
      for (std::size_t row = 0; row < 3 * kPackedRows + 5; ++row) pair.set(row, number(random, width, none));
      CHECK(pair.equal());
    }
  }
}

void the_ends_of_the_range() {
  Pair pair(-1);
  for (const int64_t value : {kLeast, kMost, int64_t{0}, int64_t{-1}, kMost - 1, kLeast + 1}) {
    for (std::size_t row = 0; row < kPackedRows; ++row)
      pair.set(pair.rows(), row % 3 == 0 ? value : int64_t{5});
  }
  CHECK(pair.equal());
}

void rows_that_are_set_again() {
  std::mt19937_64 random(2);
  for (int round = 0; round < 40; ++round) {
    Pair pair(0);
    for (int step = 0; step < 3000; ++step) {
      const bool again = pair.rows() > 0 && random() % 3 == 0;
      // Now and then some rows are left out, and later set after all.
      const std::size_t next = pair.rows() + (random() % 50 == 0 ? random() % (4 * kPackedRows) : 0);
      pair.set(again ? random() % pair.rows() : next,
               number(random, static_cast<unsigned>(random() % (2 + static_cast<unsigned>(round))), 0));
    }
    CHECK(pair.equal());
  }
}

void what_is_not_there_takes_no_memory() {
  PackedColumn nothing(-1);
  for (std::size_t row = 0; row < 100 * kPackedRows; ++row) nothing.set(row, -1);
  CHECK(nothing.empty());
  CHECK(nothing.bytes() == 0);
  PackedColumn same(-1), ascending(-1);
  constexpr std::size_t kRows = 1000 * kPackedRows;
  for (std::size_t row = 0; row < kRows; ++row) {
    same.set(row, 12'345'678);
    ascending.set(row, static_cast<int64_t>(row));
  }
  CHECK(same.bytes() < kRows / 2);
  CHECK(ascending.bytes() < kRows * 3 / 2);
  ascending.clear();
  CHECK(ascending.empty());
  CHECK(ascending[5] == -1);
  CHECK(ascending.bytes() == 0);
}

void the_place_of_a_block_that_became_wider_is_used_again() {
  constexpr std::size_t kBlocks = 100;
  PackedColumn column(-1);
  for (std::size_t row = 0; row < 2 * kBlocks * kPackedRows; ++row) column.set(row, 0);
  const auto widen = [&column](std::size_t first, int64_t value) {
    for (std::size_t block = 0; block < kBlocks; ++block) column.set((first + block) * kPackedRows, value);
  };
  widen(0, 200);
  widen(0, 60'000);
  const std::size_t before = column.bytes();
  widen(kBlocks, 200);
  // The last block is open, and packed elsewhere.
  CHECK(column.bytes() <= before);
  CHECK(column[0] == 60'000 && column[kBlocks * kPackedRows] == 200 && column[1] == 0);
}

bool same_reals(const std::vector<double>& values) {
  PackedReals packed(0.25);
  for (std::size_t row = 0; row < values.size(); ++row) packed.set(row, values[row]);
  bool same = packed[values.size()] == 0.25;
  for (std::size_t row = 0; row < values.size(); ++row) {
    // To the bit, so that zeros keep their sign and what is no number stays that.
    same &= std::bit_cast<uint64_t>(packed[row]) == std::bit_cast<uint64_t>(values[row]);
  }
  return same;
}

void reals_are_what_they_were() {
  using Limits = std::numeric_limits<double>;
  CHECK(same_reals({0.0, -0.0, 1.0, -1.0, 0.1, -0.001, 1e-6, 1e-7, -1e-7, 123456.789, 1.0 / 3, 0.25}));
  CHECK(same_reals({0x1p53, -0x1p53, 0x1p53 - 1, 0x1p53 + 2, 0x1p54, 9007199254740.993, 9007199254.740993}));
  CHECK(same_reals({Limits::max(), Limits::lowest(), Limits::min(), Limits::denorm_min(), Limits::infinity(),
                    -Limits::infinity(), Limits::quiet_NaN(), 1e15 + 0.5}));
  std::mt19937_64 random(3);
  std::vector<double> mixed;
  for (std::size_t row = 0; row < 3 * kChunkRows; ++row) {
    const double whole = static_cast<double>(static_cast<int64_t>(random()) >> (random() % 64));
    const double any = std::bit_cast<double>(random());
    const double kinds[] = {whole, whole / 10, whole / 1e3, whole / 1e6, whole / 7, any};
    mixed.push_back(kinds[random() % std::size(kinds)]);
  }
  CHECK(same_reals(mixed));
}

void reals_with_few_decimals_take_little_memory() {
  constexpr std::size_t kRows = 3 * kChunkRows;
  PackedReals percent(0), none(0), others(0);
  CHECK(none.empty() && none.bytes() == 0);
  for (std::size_t row = 0; row < kRows; ++row) {
    percent.set(row, static_cast<double>(row % 1000) / 10);
    others.set(row, 1 / (static_cast<double>(row) + 3));
  }
  CHECK(!percent.empty() && !others.empty());
  CHECK(percent.bytes() < kRows * sizeof(double) / 2);
  CHECK(others.bytes() < kRows * sizeof(double) * 5 / 4);
}

}  // namespace
}  // namespace kinetoscope

int main() {
  kinetoscope::all_widths();
  kinetoscope::the_ends_of_the_range();
  kinetoscope::rows_that_are_set_again();
  kinetoscope::what_is_not_there_takes_no_memory();
  kinetoscope::the_place_of_a_block_that_became_wider_is_used_again();
  kinetoscope::reals_are_what_they_were();
  kinetoscope::reals_with_few_decimals_take_little_memory();
  return kinetoscope::testing::checks_failed();
}
