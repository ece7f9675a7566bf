#include "collectives.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <mutex>
#include <string>

#include "json_text.h"
#include "session.h"
#include "shapes.h"

#if defined(KINETOSCOPE_DISTRIBUTED) && __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#define KINETOSCOPE_SEES_GROUPS
#include <torch/custom_class.h>

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

namespace kinetoscope {
namespace {

constexpr std::string_view kDescribedCall = "record_param_comms";
constexpr size_t kMaxListNumbers = 64;

// Writes the members of one JSON object.
class Facts {
 public:
  void add(std::string_view key, std::string_view text) {
    begin(key);
    append_json_text(out_, text);
  }
  void add(std::string_view key, int64_t number) {
    begin(key);
    out_ += std::to_string(number);
  }
  template <typename Numbers>
  void add_list(std::string_view key, const Numbers& numbers) {
    begin(key);
    const char* separator = "[";
    for (const int64_t number : numbers) {
      out_ += separator;
      out_ += std::to_string(number);
      separator = ",";
    }
    out_ += numbers.empty() ? "[]" : "]";
  }
  // The value is JSON already.
  void add_json(std::string_view key, std::string_view json) {
    begin(key);
    out_ += json;
  }
  bool empty() const { return out_.empty(); }
  std::string text() && { return "{" + std::move(out_) + "}"; }

 private:
  void begin(std::string_view key) {
    if (!out_.empty()) out_ += ',';
    append_json_text(out_, key);
    out_ += ':';
  }
  std::string out_;
};

// The total of an argument's tensors.
struct Amount {
  int64_t elements = 0;
  int64_t bytes = 0;
  int tensors = 0;
  const char* type = "";

  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !has_plain_sizes(tensor)) return;
    ++tensors;
    type = c10::toString(tensor.scalar_type());
    const int64_t own = tensor.numel();
    elements += own;
    bytes += own * static_cast<int64_t>(tensor.element_size());
  }
  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      add(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) add(element);
    }
  }
};

std::string argument_text(const c10::IValue& value) {
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isInt()) return std::to_string(value.toInt());
  if (value.isString()) {
    std::string out;
    append_json_text(out, value.toStringRef());
    return out;
  }
  Amount amount;
  amount.add(value);
  if (amount.tensors != 0) {
    std::string out = "[" + std::to_string(amount.elements) + "," + std::to_string(amount.bytes) + ",";
    append_json_text(out, amount.type);
    return out + "]";
  }
  if (value.isIntList()) {
    const auto numbers = value.toIntVector();
    std::string out = "[";
    for (size_t at = 0; at < numbers.size() && at < kMaxListNumbers; ++at) {
      if (at != 0) out += ",";
      out += std::to_string(numbers[at]);
    }
    return out + "]";
  }
  return "null";
}

#ifdef KINETOSCOPE_SEES_GROUPS

const char* reduction_name(c10d::ReduceOp::RedOpType reduction) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  const auto at = static_cast<size_t>(reduction);
  return at < std::size(kNames) ? kNames[at] : "UNUSED";
}

void add_object(const c10::IValue& value, Facts& facts) {
  const auto name = value.type()->annotation_str();
  if (name.ends_with(".c10d.ProcessGroup")) {
    const auto group = value.toCustomClass<c10d::ProcessGroup>();
    facts.add("group", group->getGroupName());
    facts.add("description", group->getGroupDesc());
    facts.add("rank", group->getRank());
    facts.add("size", group->getSize());
  } else if (name.ends_with(".c10d.ReduceOp")) {
    facts.add("reduction", reduction_name(value.toCustomClass<c10d::ReduceOp>()->op_));
  }
}

void add_description(Facts& facts) {
  const auto* info = dynamic_cast<const torch::ParamCommsDebugInfo*>(
      c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PARAM_COMMS_INFO));
  if (info == nullptr) return;
  facts.add("call", info->getCollectiveName());
  facts.add("group", info->getProcessGroupName());
  facts.add("description", info->getProcessGroupDesc());
  facts.add("rank", info->getRank());
  facts.add("size", info->getWorldSize());
  facts.add("first_rank", info->getGlobalRankStart());
  facts.add("rank_stride", info->getGlobalRankStride());
  facts.add("in_elements", info->getInMessageNelems());
  facts.add("out_elements", info->getOutMessageNelems());
  facts.add("type", c10::toString(info->getDType()));
  facts.add("item_bytes", static_cast<int64_t>(c10::elementSize(info->getDType())));
  facts.add_list("in_splits", info->getInputSplitSizes());
  facts.add_list("out_splits", info->getOutputSplitSizes());
}

#else

void add_object(const c10::IValue&, Facts&) {}
void add_description(Facts&) {}

#endif

}  // namespace

bool is_between_ranks(std::string_view name) {
  constexpr std::string_view kBeginnings[] = {
      kDescribedCall, "c10d::", "_c10d_functional::", "gloo:", "nccl:", "xccl:", "hccl:", "ucc:", "mpi:"};
  for (const std::string_view beginning : kBeginnings) {
    if (name.starts_with(beginning)) return true;
  }
  return false;
}

uint32_t facts_between_ranks(Session& session, const at::RecordFunction& function) {
  try {
    Facts facts;
    if (std::string_view(function.name()) == kDescribedCall) {
      add_description(facts);
    } else if (const auto inputs = function.inputs(); !inputs.empty()) {
      std::string arguments = "[";
      for (const c10::IValue& value : inputs) {
        if (arguments.size() > 1) arguments += ',';
        arguments += argument_text(value);
        if (value.isObject()) add_object(value, facts);
      }
      facts.add_json("arguments", arguments + "]");
    }
    if (facts.empty()) return 0;
    const std::string text = std::move(facts).text();
    std::lock_guard lock(session.dictionary().mutex());
    const uint32_t id = session.dictionary().string(text);
    return id == kUnknownId ? 0 : id;
  } catch (...) {
    // The group was destroyed, or the object is of another release of torch: the call is recorded without
    // facts.
    session.faults.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
}

}  // namespace kinetoscope
