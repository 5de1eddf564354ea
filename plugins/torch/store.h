#pragma once

// Included by shim.cc only: what torch gives and takes at the edge, errors, signals and its store.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/result.h"
#include "transport/rendezvous.h"

namespace isthmus::plugin {

using std::chrono::milliseconds;

inline constexpr const char* kName = "isthmus";
inline constexpr milliseconds kStoreSlice{1000};

inline std::exception_ptr to_exception(const Error& error) {
  const c10::SourceLocation where{kName, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  switch (error.code) {
    case Code::kInvalidArgument:
      return std::make_exception_ptr(c10::ValueError(where, error.message));
    case Code::kUnsupported:
      return std::make_exception_ptr(c10::NotImplementedError(where, error.message));
    default:
      return std::make_exception_ptr(c10::DistBackendError(where, error.message));
  }
}

[[noreturn]] inline void raise(const Error& error) {
  std::rethrow_exception(to_exception(error));
}

[[noreturn]] inline void refuse(Code code, std::string message) {
  raise(Error{.code = code, .message = std::move(message)});
}

// Lets Ctrl-C end a wait of the main thread; other threads get no signals.
class Interrupt {
 public:
  bool keep_waiting() {
    thread_local const bool main_thread = ::gettid() == ::getpid();
    if (!main_thread || error_.has_value()) {
      return !error_.has_value();
    }
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      error_.emplace();
    }
    return !error_.has_value();
  }

  bool happened() const { return error_.has_value(); }

  void rethrow() {
    if (error_.has_value()) {
      throw py::error_already_set(*error_);
    }
  }

 private:
  std::optional<py::error_already_set> error_;
};

// Gives up Python's lock, where this thread has it, for calls that wait for other threads.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
      release_.emplace();
    }
  }

 private:
  std::optional<py::gil_scoped_release> release_;
};

// torch's store as our rendezvous. Waits in slices, so that Ctrl-C and our own deadline hold
// whatever the store's own time limit is.
class TorchStoreRendezvous final : public Rendezvous {
 public:
  explicit TorchStoreRendezvous(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  Status set(std::string_view key, std::string_view value) override {
    return guarded(key, "set", [&] {
      store_->set(std::string(key), std::vector<std::uint8_t>(value.begin(), value.end()));
    });
  }

  Result<std::string> get(std::string_view key, Deadline deadline) override {
    const std::string name(key);
    while (true) {
      const std::int64_t begin = monotonic_ns();
      const milliseconds slice =
          std::min(kStoreSlice, milliseconds(std::max<std::int64_t>(1, deadline.left_ms(begin))));
      const Status there = guarded(key, "wait for", [&] { store_->wait({name}, slice); });
      if (there.ok()) {
        break;
      }
      if (!interrupt.keep_waiting()) {
        return Error{.code = Code::kAborted, .message = "interrupted"};
      }
      // Stores report an expired limit by exceptions of several types: only the clock tells.
      const bool expired = monotonic_ns() - begin >= slice.count() * 1'000'000 * 9 / 10;
      if (!expired) {
        return there.error();
      }
      if (deadline.passed(monotonic_ns())) {
        return Error{.code = Code::kTimeout,
                     .message = c10::str("nobody set ", key, " in torch's store in time")};
      }
    }
    std::string value;
    ISTHMUS_TRY(guarded(key, "get", [&] {
      const std::vector<std::uint8_t> bytes = store_->get(name);
      value.assign(bytes.begin(), bytes.end());
    }));
    return value;
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t amount) override {
    std::int64_t sum = 0;
    ISTHMUS_TRY(guarded(key, "add to", [&] { sum = store_->add(std::string(key), amount); }));
    return sum;
  }

  Interrupt interrupt;

 private:
  template <typename Body>
  static Status guarded(std::string_view key, const char* verb, Body body) {
    try {
      body();
      return {};
    } catch (const c10::Error& error) {
      return Error{.code = Code::kIo,
                   .message = c10::str("could not ", verb, " ", key,
                                       " in torch's store: ", error.what_without_backtrace())};
    } catch (const std::exception& error) {
      return Error{
          .code = Code::kIo,
          .message = c10::str("could not ", verb, " ", key, " in torch's store: ", error.what())};
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace isthmus::plugin
