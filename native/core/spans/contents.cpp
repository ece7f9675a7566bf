#include "contents.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nesting.h"

namespace kinetoscope {
namespace {

// In place of the number of contents, of a number of Python, and of values that were read.
constexpr int64_t kNumber = -1, kValues = -2;
// The arguments of batch and instance normalization to which these write in training.
constexpr int32_t kFirstStatistic = 3, kLastStatistic = 4;

void check(const TensorCalls& calls) {
  const std::size_t count = calls.kind.size(), tensors = calls.argument.size();
  if (calls.cycle.size() != count || calls.flags.size() != count || calls.first.size() != count + 1 ||
      calls.storage.size() != tensors || calls.version.size() != tensors || calls.offset.size() != tensors ||
      calls.tensor_flags.size() != tensors || calls.content.size() != tensors) {
    throw BadColumns("find_repeats: the columns have different lengths");
  }
  if (calls.first.front() != 0 || calls.first.back() != static_cast<int64_t>(tensors) ||
      !std::is_sorted(calls.first.begin(), calls.first.end())) {
    throw BadColumns("find_repeats: first is not in order");
  }
}

// Numbers sequences of numbers densely.
class Keys {
 public:
  std::size_t id_of(const std::vector<int64_t>& key) {
    const std::string_view bytes(reinterpret_cast<const char*>(key.data()), key.size() * sizeof(int64_t));
    if (const auto found = ids_.find(bytes); found != ids_.end()) return found->second;
    // Blocks stay where they are: the keys of the map point into them.
    if (blocks_.empty() || blocks_.back().size() + key.size() > blocks_.back().capacity()) {
      blocks_.emplace_back().reserve(std::max(kBlock, key.size()));
    }
    std::vector<int64_t>& block = blocks_.back();
    const std::size_t begin = block.size();
    block.insert(block.end(), key.begin(), key.end());
    const std::string_view kept(reinterpret_cast<const char*>(block.data() + begin), bytes.size());
    return ids_.emplace(kept, ids_.size()).first->second;
  }

 private:
  static constexpr std::size_t kBlock = 1 << 16;
  std::vector<std::vector<int64_t>> blocks_;
  std::unordered_map<std::string_view, std::size_t> ids_;
};

class Contents {
 public:
  explicit Contents(const TensorCalls& calls)
      : calls_(calls),
        found_{Column<int64_t>(calls.kind.size(), -1), Column<int64_t>(calls.kind.size(), -1)} {}

  RepeatedCalls follow() && {
    for (std::size_t call = 0; call < calls_.kind.size(); ++call) {
      if (call > 0 && calls_.cycle[call] != calls_.cycle[call - 1]) {
        // What ran in between was not recorded.
        of_.clear();
        unread_fills_.clear();
        makers_.clear();
      }
      follow_call(call);
    }
    return std::move(found_);
  }

 private:
  struct Known {
    int64_t number, version;
    bool is_from_outside;  // it does not follow from what a call was given
  };

  bool has(std::size_t tensor, TensorFlag flag) const { return (calls_.tensor_flags[tensor] & flag) != 0; }

  void follow_call(std::size_t call) {
    const uint8_t flags = calls_.flags[call];
    bool determined = (flags & kCallIsDetermined) != 0;
    key_.assign(1, calls_.kind[call]);
    const auto begin = static_cast<std::size_t>(calls_.first[call]);
    const auto end = static_cast<std::size_t>(calls_.first[call + 1]);
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      if (has(tensor, kTensorIsResult)) continue;
      const int64_t place = calls_.argument[tensor], storage = calls_.storage[tensor];
      if (has(tensor, kTensorIsNumber)) {
        key_.insert(key_.end(), {place, kNumber, calls_.offset[tensor]});
        continue;
      }
      if (storage == 0 && (flags & kCallWritesUnknown) != 0) forget();
      const Known& known = known_of(tensor);
      const bool is_read = calls_.content[tensor] != 0 && known.is_from_outside;
      if (is_read) {
        key_.insert(key_.end(), {place, kValues, static_cast<int64_t>(calls_.content[tensor])});
      } else {
        key_.insert(key_.end(), {place, known.number, calls_.offset[tensor]});
      }
      if (storage == 0 || has(tensor, kTensorIsShared)) {
        determined = determined && is_read;
        changed(storage);
      } else if ((flags & kCallOverwrites) != 0 && place == 0 && has(tensor, kTensorIsWhole)) {
        overwrite(call, begin, end, tensor);
      } else if ((flags & kCallWrites) != 0 || !is_result(begin, end, storage)) {
        unread_fills_.erase(storage);
      }
    }
    made_.clear();
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      if (has(tensor, kTensorIsResult) && calls_.storage[tensor] != 0 &&
          is_written(flags, begin, end, tensor)) {
        made_.push_back(tensor);
      }
    }
    change_arguments(flags, begin, end, determined);
    make_results(call, begin, end, determined);
  }

  // A call overwrites all of its first argument: if nothing has read what filled that, it was not needed.
  void overwrite(std::size_t call, std::size_t begin, std::size_t end, std::size_t target) {
    const int64_t storage = calls_.storage[target];
    const auto fill = unread_fills_.find(storage);
    if (fill == unread_fills_.end()) return;
    bool read = false;
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      read = read || (!has(tensor, kTensorIsResult) && calls_.argument[tensor] != calls_.argument[target] &&
                      calls_.storage[tensor] == storage);
    }
    if (!read) found_.overwritten_by[fill->second] = static_cast<int64_t>(call);
    unread_fills_.erase(fill);
  }

  bool is_result(std::size_t begin, std::size_t end, int64_t storage) const {
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      if (has(tensor, kTensorIsResult) && calls_.storage[tensor] == storage) return true;
    }
    return false;
  }

  // The last argument with a storage, `end` for none.
  std::size_t given(std::size_t begin, std::size_t end, int64_t storage) const {
    for (std::size_t tensor = end; tensor-- > begin;) {
      if (!has(tensor, kTensorIsResult) && !has(tensor, kTensorIsNumber) &&
          calls_.storage[tensor] == storage) {
        return tensor;
      }
    }
    return end;
  }

  // Whether a call made or changed the storage of a result: else the result is a view of an argument.
  bool is_written(uint8_t flags, std::size_t begin, std::size_t end, std::size_t result) const {
    if ((flags & kCallWrites) != 0) return true;
    const std::size_t argument = given(begin, end, calls_.storage[result]);
    return argument == end || calls_.version[result] != calls_.version[argument];
  }

  // What a call may have written to without a result that says so.
  void change_arguments(uint8_t flags, std::size_t begin, std::size_t end, bool determined) {
    const bool statistics = (flags & kCallHasStatistics) != 0 && !determined;
    const bool hidden = (flags & kCallIsTorchs) == 0 || ((flags & kCallWrites) != 0 && made_.empty());
    if (!hidden && !statistics) return;
    for (std::size_t tensor = begin; tensor < end; ++tensor) {
      if (has(tensor, kTensorIsResult)) continue;
      const int32_t place = calls_.argument[tensor];
      if (!statistics || (place >= kFirstStatistic && place <= kLastStatistic))
        changed(calls_.storage[tensor]);
    }
  }

  void make_results(std::size_t call, std::size_t begin, std::size_t end, bool determined) {
    const uint8_t flags = calls_.flags[call];
    const bool numbered = determined && !made_.empty();
    int64_t earlier = -1;
    std::size_t id = 0;
    if (numbered) {
      id = keys_.id_of(key_);
      if (id == last_.size()) {
        last_.push_back(-1);
        results_.emplace_back();
      }
      earlier = std::exchange(last_[id], static_cast<int64_t>(call));
    }
    found_.before[call] = earlier;
    for (const std::size_t tensor : made_) {
      const int64_t storage = calls_.storage[tensor];
      if (earlier < 0 && given(begin, end, storage) != end) revoke(storage);
      makers_[storage].push_back(call);
      of_[storage] = {numbered ? result_number(id, tensor) : fresh(), calls_.version[tensor], !numbered};
      if ((flags & kCallFills) != 0 && has(tensor, kTensorIsWhole) && !has(tensor, kTensorIsShared)) {
        unread_fills_[storage] = call;
      } else {
        unread_fills_.erase(storage);
      }
    }
  }

  // The number of what a call makes, equal for calls with the same result.
  int64_t result_number(std::size_t id, std::size_t tensor) {
    for (const Result& known : results_[id]) {
      if (known.place == calls_.argument[tensor] && known.offset == calls_.offset[tensor])
        return known.number;
    }
    results_[id].push_back({calls_.argument[tensor], calls_.offset[tensor], fresh()});
    return results_[id].back().number;
  }

  int64_t fresh() { return ++last_number_; }

  // What is known of the storage of an argument, where it has the version that is known.
  const Known& known_of(std::size_t tensor) {
    const int64_t storage = calls_.storage[tensor], version = calls_.version[tensor];
    if (const auto known = of_.find(storage); known != of_.end()) {
      if (known->second.version == version) return known->second;
      changed(storage);
    }
    return of_[storage] = {fresh(), version, true};
  }

  // Something unknown may have written to a storage.
  void changed(int64_t storage) {
    of_.erase(storage);
    unread_fills_.erase(storage);
    revoke(storage);
  }

  // Something unknown may have written to any storage.
  void forget() {
    for (const auto& [storage, calls] : makers_) revoke(calls);
    makers_.clear();
    of_.clear();
    unread_fills_.clear();
  }

  // What is in a storage is changed later: whoever made it needed memory of its own for that.
  void revoke(int64_t storage) {
    if (const auto made = makers_.find(storage); made != makers_.end()) {
      revoke(made->second);
      makers_.erase(made);
    }
  }

  void revoke(const std::vector<std::size_t>& calls) {
    for (const std::size_t call : calls) found_.before[call] = -1;
  }

  struct Result {
    int32_t place;
    int64_t offset, number;
  };

  const TensorCalls& calls_;
  RepeatedCalls found_;
  int64_t last_number_ = 0;
  Keys keys_;
  std::vector<int64_t> last_;                 // of each key: the last call with it
  std::vector<std::vector<Result>> results_;  // of each key: what its calls make
  std::unordered_map<int64_t, Known> of_;     // of each storage: its number, and its version then
  // The calls that made and changed a storage, and the fill of it that nothing has read.
  std::unordered_map<int64_t, std::vector<std::size_t>> makers_;
  std::unordered_map<int64_t, std::size_t> unread_fills_;
  // Of the call that is followed.
  std::vector<int64_t> key_;
  std::vector<std::size_t> made_;
};

}  // namespace

RepeatedCalls find_repeats(const TensorCalls& calls) {
  check(calls);
  return Contents(calls).follow();
}

}  // namespace kinetoscope
