#include "plugins/nccl/shims/calls.h"

#include <array>
#include <atomic>
#include <csignal>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fork.h"
#include "plugins/nccl/listener.h"
#include "plugins/nccl/net.h"
#include "plugins/nccl/report.h"

namespace isthmus::nccl::shims {
namespace {

constexpr int kLevelWarn = 2;
constexpr int kLevelInfo = 3;
// INIT and NET: what NCCL_DEBUG=INFO shows without NCCL_DEBUG_SUBSYS.
constexpr unsigned long kFlags = 1 | 16;

std::atomic<Log>& log_slot() {
  static std::atomic<Log> slot{nullptr};
  return slot;
}

void to_nccl(LogLevel level, const char* text) {
  const Log log = log_slot().load(std::memory_order_relaxed);
  if (log != nullptr) {
    log(level <= LogLevel::kWarn ? kLevelWarn : kLevelInfo, kFlags, "isthmus", 0, "%s", text);
  }
}

int outcome_of(const Error& error) {
  switch (error.code) {
    case Code::kInvalidArgument:
      return kInvalidArgument;
    case Code::kMismatch:
      return kInvalidUsage;
    case Code::kPeerDead:
    case Code::kTimeout:
    case Code::kProtocol:
      return kRemoteError;
    case Code::kIo:
    case Code::kResource:
      return kSystemError;
    default:
      return kInternalError;
  }
}

int fail(const char* call, const Error& error) {
  report(LogLevel::kWarn, std::string(call) + ": " + error.message);
  return outcome_of(error);
}

// A comm's failure was reported when it happened.
int comm_failed(const Error& error) {
  return outcome_of(error);
}

void on_signal(int /*signal*/) {
  Listener::get().ask_for_dump();
}

// SIGUSR2 writes who waits for whom, unless the program has a use of its own for it.
void install_dump() {
  struct sigaction now {};

  if (::sigaction(SIGUSR2, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
      now.sa_handler == SIG_DFL) {
    struct sigaction ours {};

    ours.sa_handler = on_signal;
    ours.sa_flags = SA_RESTART;
    ::sigaction(SIGUSR2, &ours, nullptr);
  }
}

std::span<std::byte, kHandleBytes> bytes_of(void* handle) {
  return std::span<std::byte, kHandleBytes>(static_cast<std::byte*>(handle), kHandleBytes);
}

}  // namespace

int init(const char* abi, Log log) {
  log_slot().store(log, std::memory_order_relaxed);
  set_reporter(log == nullptr ? nullptr : to_nccl);
  const Status started = Net::get().init(abi);
  if (!started.ok()) {
    return fail("isthmus is not used (NCCL_NET=isthmus makes this fatal)", started.error());
  }
  install_dump();
  return kSuccess;
}

int finalize() {
  Net::get().finish();
  return kSuccess;
}

int devices(int* count) {
  *count = Net::get().devices();
  return kSuccess;
}

int facts(int device, Facts* out) {
  const Result<Device> got = Net::get().device(device);
  if (!got.ok()) {
    return fail("getProperties", got.error());
  }
  // NCCL keeps the pointers. Devices do not change, so that each text is kept once.
  static std::mutex mutex;
  using Texts = std::vector<std::unique_ptr<std::string>>;
  static Texts& kept = *std::make_unique<Texts>().release();
  const auto keep = [&](const std::string& text) {
    for (const std::unique_ptr<std::string>& each : kept) {
      if (*each == text) {
        return each->data();
      }
    }
    return kept.emplace_back(std::make_unique<std::string>(text))->data();
  };
  const std::lock_guard<std::mutex> lock(mutex);
  out->name = keep(got->name);
  out->pci_path = got->pci_path.empty() ? nullptr : keep(got->pci_path);
  out->guid = got->guid;
  out->speed = got->speed_mbps;
  out->latency = got->latency_us;
  return kSuccess;
}

int listen(int device, void* handle, void** comm) {
  *comm = nullptr;
  Result<std::unique_ptr<ListenComm>> got = Net::get().listen(device, bytes_of(handle));
  if (!got.ok()) {
    return fail("listen", got.error());
  }
  *comm = got->release();
  return kSuccess;
}

int connect(int device, int traffic_class, void* handle, void** comm, DeviceHandle** gpu) {
  *comm = nullptr;
  if (gpu != nullptr) {
    *gpu = nullptr;
  }
  Result<std::unique_ptr<SendComm>> got = Net::get().connect(device, bytes_of(handle));
  if (!got.ok()) {
    return fail("connect", got.error());
  }
  if (*got != nullptr && traffic_class >= 0) {
    (*got)->set_traffic_class(traffic_class);
  }
  *comm = got->release();
  return kSuccess;
}

int accept(void* listening, void** comm, DeviceHandle** gpu) {
  *comm = nullptr;
  if (gpu != nullptr) {
    *gpu = nullptr;
  }
  Result<std::unique_ptr<RecvComm>> got = Net::accept(*static_cast<ListenComm*>(listening));
  if (!got.ok()) {
    return fail("accept", got.error());
  }
  *comm = got->release();
  return kSuccess;
}

int reg_mr(int type, void** region) {
  // Sockets need no registration: any value that is not null.
  static char none = 0;
  *region = type == kPtrHost ? &none : nullptr;
  if (type != kPtrHost) {
    report(LogLevel::kWarn, "regMr: isthmus takes host memory (type 1) alone, got type " +
                                std::to_string(type) + "; its properties say so.");
    return kInternalError;
  }
  return kSuccess;
}

int isend(void* comm, void* data, std::size_t bytes, void** request) {
  *request = nullptr;
  if (forked_child()) {
    return kSystemError;
  }
  auto* const send = static_cast<SendComm*>(comm);
  const std::lock_guard<std::mutex> lock(send->mutex());
  const Result<Request*> got = send->post(data, bytes);
  if (!got.ok()) {
    return comm_failed(got.error());
  }
  *request = *got;
  return kSuccess;
}

int irecv(void* comm, int count, void** data, std::size_t bytes, void** request) {
  *request = nullptr;
  if (forked_child()) {
    return kSystemError;
  }
  if (count != kMaxRecvs) {
    report(LogLevel::kWarn,
           "irecv: " + std::to_string(count) + " buffers in one request; isthmus's maxRecvs is 1.");
    return kInternalError;
  }
  auto* const recv = static_cast<RecvComm*>(comm);
  const std::lock_guard<std::mutex> lock(recv->mutex());
  const Result<Request*> got = recv->post(data[0], bytes);
  if (!got.ok()) {
    return comm_failed(got.error());
  }
  *request = *got;
  return kSuccess;
}

int iflush(void** request) {
  *request = nullptr;  // host memory is there when test() says so
  return kSuccess;
}

int test(void* request, int* done, int* sizes) {
  *done = 0;
  if (request == nullptr || forked_child()) {
    return request == nullptr ? kInternalError : kSystemError;
  }
  std::uint64_t bytes = 0;
  const Result<bool> got = test_request(static_cast<Request*>(request), &bytes);
  if (!got.ok()) {
    return comm_failed(got.error());
  }
  if (*got) {
    *done = 1;
    if (sizes != nullptr) {
      constexpr std::uint64_t kIntMax = std::numeric_limits<int>::max();
      sizes[0] = static_cast<int>(bytes > kIntMax ? kIntMax : bytes);
    }
  }
  return kSuccess;
}

// In a forked child the memory stays: its locks may be held by threads that are not there.
int close_send(void* comm) {
  if (comm != nullptr && !forked_child()) {
    const std::unique_ptr<SendComm> mine(static_cast<SendComm*>(comm));
  }
  return kSuccess;
}

int close_recv(void* comm) {
  if (comm != nullptr && !forked_child()) {
    const std::unique_ptr<RecvComm> mine(static_cast<RecvComm*>(comm));
  }
  return kSuccess;
}

int close_listen(void* comm) {
  if (comm != nullptr && !forked_child()) {
    const std::unique_ptr<ListenComm> mine(static_cast<ListenComm*>(comm));
    Net::close(*mine);
  }
  return kSuccess;
}

}  // namespace isthmus::nccl::shims
