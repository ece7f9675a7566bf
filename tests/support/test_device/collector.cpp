// Reports what the device did to Kineto, through the door that torch has for accelerators outside of its own
// tree.

#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
// libkineto.h has what a session hands over; output_base.h whom it tells.
#include <libkineto.h>
#include <output_base.h>
#include <unistd.h>

#include "runtime.h"

namespace {

using libkineto::ActivityType;
using test_device::Activity;
using test_device::Kind;

const std::set<ActivityType> kTypes{ActivityType::PRIVATEUSE1_RUNTIME, ActivityType::CONCURRENT_KERNEL,
                                    ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                                    ActivityType::CUDA_SYNC};

ActivityType type_of(Kind kind) {
  switch (kind) {
    case Kind::kCall:
      return ActivityType::PRIVATEUSE1_RUNTIME;
    case Kind::kKernel:
      return ActivityType::CONCURRENT_KERNEL;
    case Kind::kCopy:
      return ActivityType::GPU_MEMCPY;
    case Kind::kFill:
      return ActivityType::GPU_MEMSET;
    case Kind::kWait:
      return ActivityType::CUDA_SYNC;
  }
  return ActivityType::CUDA_SYNC;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}
  // A session that is dropped half way leaves no tracer running.
  ~Session() override {
    if (running_) test_device::stop_tracing();
  }

  void start() override {
    running_ = true;
    test_device::start_tracing();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    running_ = false;
    activities_ = test_device::stop_tracing();
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }
  void processTrace(libkineto::ActivityLogger&) override {}

  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t begin_ns, int64_t end_ns) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(begin_ns, end_ns, "test device");
    for (const Activity& one : activities_) {
      const ActivityType type = type_of(one.kind);
      if (one.begin_ns < begin_ns || one.end_ns > end_ns || types_.count(type) == 0) continue;
      const bool on_host = one.kind == Kind::kCall;
      buffer_->emplace_activity(buffer_->span, type, one.name);
      libkineto::GenericTraceActivity& made = *buffer_->activities.back();
      made.startTime = one.begin_ns;
      made.endTime = one.end_ns;
      made.id = static_cast<int32_t>(one.correlation);
      made.device = on_host ? static_cast<int32_t>(getpid()) : one.device;
      made.resource = on_host ? one.thread : static_cast<int32_t>(one.stream);
      made.threadId = one.thread;
      made.flow.id = static_cast<uint32_t>(one.correlation);
      made.flow.type = libkineto::kLinkAsyncCpuGpu;
      made.flow.start = on_host;
      made.linked = linked(static_cast<int32_t>(one.operator_id));
      made.addMetadata("External id", one.operator_id);
      made.addMetadata("correlation", one.correlation);
      if (!on_host) {
        made.addMetadata("device", one.device);
        made.addMetadata("stream", one.stream);
      }
      if (one.bytes != 0) made.addMetadata("bytes", one.bytes);
      made.log(logger);
    }
    for (int device = 0; device < test_device::kDevices; ++device) {
      const auto name = "Test device " + std::to_string(device);
      logger.handleDeviceInfo({device, device, name, "PrivateUse1 " + std::to_string(device)}, begin_ns);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }
  void pushCorrelationId(uint64_t id) override { test_device::push_operator(id); }
  void popCorrelationId() override { test_device::pop_operator(); }

 private:
  std::set<ActivityType> types_;
  std::vector<Activity> activities_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  bool running_ = false;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return kTypes; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    return std::make_unique<Session>(types);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                 const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  std::string name_ = "test device";
};

const torch::profiler::impl::RegisterPrivateUse1Profiler<Profiler> kRegistered;

}  // namespace
