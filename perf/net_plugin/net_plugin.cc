#include "perf/net_plugin/net_plugin.h"

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "plugins/nccl/shims/tables.h"

namespace isthmus::net_plugin {
namespace {

using nccl::shims::DeviceHandle;

constexpr std::array<int, 7> kVersions = {12, 11, 10, 9, 8, 7, 6};
constexpr int kLogInfo = 3;
constexpr int kLogWarn = 2;

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): the logger has no argument
std::atomic<bool> log_shown{false};

// As NCCL's logger: any thread.
__attribute__((format(printf, 5, 6))) void log_line(int level, unsigned long, const char* file,
                                                    int line, const char* format, ...) {
  if (!log_shown.load(std::memory_order_relaxed) || level > kLogInfo) {
    return;
  }
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "%s %s:%d %s\n", level <= kLogWarn ? "WARN" : "INFO",
               file == nullptr ? "" : file, line, text.data());
}

// One version's calls, which differ in arguments and types.
template <typename Table, typename TableProperties, int kVersion>
class Adapter final : public NetPlugin {
 public:
  Adapter(std::shared_ptr<void> library, Table* table)
      : library_(std::move(library)), table_(table) {}

  int version() const override { return kVersion; }

  const char* name() const override { return table_->name; }

  int init() override {
    if constexpr (kVersion >= 11) {
      nccl::shims::CommConfig config = {-1};
      return table_->init(&context_, 1, &config, log_line, nullptr);
    } else if constexpr (kVersion == 10) {
      return table_->init(log_line, nullptr);
    } else {
      return table_->init(log_line);
    }
  }

  int finalize() override {
    if constexpr (kVersion >= 11) {
      return table_->finalize(std::exchange(context_, nullptr));
    } else {
      return 0;
    }
  }

  int devices(int* count) override { return table_->devices(count); }

  int properties(int device, Properties* out) override {
    TableProperties found;
    // NCCL passes memory that nobody cleared.
    std::memset(static_cast<void*>(&found), 0x5a, sizeof(found));
    const int result = table_->get_properties(device, &found);
    if (result == 0) {
      out->name = found.name;
      out->pci_path = found.pci_path;
      out->pointers = found.ptr_support;
      out->speed_mbit = found.speed;
      out->latency_us = found.latency;
      out->max_comms = found.max_comms;
      out->max_recvs = found.max_recvs;
      if constexpr (kVersion >= 9) {
        out->max_p2p_bytes = found.max_p2p_bytes;
      }
    }
    return result;
  }

  int listen(int device, void* handle, void** comm) override {
    if constexpr (kVersion >= 11) {
      return table_->listen(context_, device, handle, comm);
    } else {
      return table_->listen(device, handle, comm);
    }
  }

  int connect(int device, void* handle, void** comm) override {
    [[maybe_unused]] DeviceHandle* none = nullptr;
    if constexpr (kVersion >= 11) {
      return table_->connect(context_, device, handle, comm, &none);
    } else if constexpr (kVersion == 10) {
      nccl::shims::CommConfig config = {-1};
      return table_->connect(device, &config, handle, comm, &none);
    } else if constexpr (kVersion >= 7) {
      return table_->connect(device, handle, comm, &none);
    } else {
      return table_->connect(device, handle, comm);
    }
  }

  int accept(void* listening, void** comm) override {
    [[maybe_unused]] DeviceHandle* none = nullptr;
    if constexpr (kVersion >= 7) {
      return table_->accept(listening, comm, &none);
    } else {
      return table_->accept(listening, comm);
    }
  }

  int reg(void* comm, void* data, std::size_t bytes, int type, void** region) override {
    using Bytes = std::conditional_t<(kVersion >= 8), std::size_t, int>;
    return table_->reg_mr(comm, data, static_cast<Bytes>(bytes), type, region);
  }

  int dereg(void* comm, void* region) override { return table_->dereg_mr(comm, region); }

  int send(void* comm, void* data, std::size_t bytes, int tag, void* region,
           void** request) override {
    if constexpr (kVersion >= 10) {
      return table_->isend(comm, data, bytes, tag, region, nullptr, request);
    } else if constexpr (kVersion == 9) {
      return table_->isend(comm, data, bytes, tag, region, request);
    } else {
      return table_->isend(comm, data, static_cast<int>(bytes), tag, region, request);
    }
  }

  int recv(void* comm, void* data, std::size_t bytes, int tag, void* region,
           void** request) override {
    using Bytes = std::conditional_t<(kVersion >= 9), std::size_t, int>;
    auto size = static_cast<Bytes>(bytes);
    if constexpr (kVersion >= 10) {
      void* profiled = nullptr;
      return table_->irecv(comm, 1, &data, &size, &tag, &region, &profiled, request);
    } else {
      return table_->irecv(comm, 1, &data, &size, &tag, &region, request);
    }
  }

  int test(void* request, int* done, int* bytes) override {
    return table_->test(request, done, bytes);
  }

  int close_send(void* comm) override { return table_->close_send(comm); }

  int close_recv(void* comm) override { return table_->close_recv(comm); }

  int close_listen(void* comm) override { return table_->close_listen(comm); }

 private:
  std::shared_ptr<void> library_;
  Table* table_;
  void* context_ = nullptr;  // from version 11 on
};

Result<std::shared_ptr<void>> open_library(const std::string& path) {
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error{.code = Code::kInvalidArgument,
                 .message = fmt::format("The plug-in {} cannot be loaded: {}.", path, ::dlerror())};
  }
  return std::shared_ptr<void>(library, [](void* one) { ::dlclose(one); });
}

void* table_of(void* library, int version) {
  return ::dlsym(library, fmt::format("ncclNetPlugin_v{}", version).c_str());
}

std::unique_ptr<NetPlugin> adapt(const std::shared_ptr<void>& library, void* table, int version) {
  namespace shims = nccl::shims;
  const auto make = [&]<typename Table, typename Its, int kVersion>() {
    return std::make_unique<Adapter<Table, Its, kVersion>>(library, static_cast<Table*>(table));
  };
  switch (version) {
    case 6:
      return make.template operator()<shims::NetV6, shims::PropertiesV6, 6>();
    case 7:
      return make.template operator()<shims::NetV7, shims::PropertiesV7, 7>();
    case 8:
      return make.template operator()<shims::NetV8, shims::PropertiesV8, 8>();
    case 9:
      return make.template operator()<shims::NetV9, shims::PropertiesV9, 9>();
    case 10:
      return make.template operator()<shims::NetV10, shims::PropertiesV9, 10>();
    case 11:
      return make.template operator()<shims::NetV11, shims::PropertiesV11, 11>();
    case 12:
      return make.template operator()<shims::NetV12, shims::PropertiesV12, 12>();
    default:
      return nullptr;
  }
}

}  // namespace

Result<std::vector<int>> NetPlugin::versions(const std::string& path) {
  const Result<std::shared_ptr<void>> library = open_library(path);
  if (!library.ok()) {
    return library.error();
  }
  std::vector<int> out;
  for (const int version : kVersions) {
    if (table_of(library->get(), version) != nullptr) {
      out.push_back(version);
    }
  }
  if (out.empty()) {
    return Error{.code = Code::kUnsupported,
                 .message = fmt::format("{} exports none of ncclNetPlugin_v6 to v12: is it a "
                                        "network plug-in of NCCL?",
                                        path)};
  }
  return out;
}

Result<std::unique_ptr<NetPlugin>> NetPlugin::load(const std::string& path, int version) {
  const Result<std::vector<int>> exported = versions(path);
  if (!exported.ok()) {
    return exported.error();
  }
  const Result<std::shared_ptr<void>> library = open_library(path);
  if (!library.ok()) {
    return library.error();
  }
  const int wanted = version == 0 ? exported->front() : version;
  void* const table = table_of(library->get(), wanted);
  if (table == nullptr) {
    return Error{.code = Code::kUnsupported,
                 .message = fmt::format("{} does not export ncclNetPlugin_v{}; it has: v{}.", path,
                                        wanted, fmt::join(*exported, ", v"))};
  }
  return adapt(*library, table, wanted);
}

const char* result_name(int result) {
  constexpr std::array<const char*, 8> kNames = {
      "success",          "unhandled CUDA error", "system error", "internal error",
      "invalid argument", "invalid usage",        "remote error", "in progress"};
  const auto index = static_cast<std::size_t>(result);
  return index < kNames.size() ? kNames[index] : "unknown result";
}

void show_log(bool on) {
  log_shown.store(on, std::memory_order_relaxed);
}

}  // namespace isthmus::net_plugin
