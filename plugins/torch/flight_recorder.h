#pragma once

// Included by shim.cc only: a flight recorder in torch's format.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <torch/csrc/distributed/c10d/FlightRecorderDetail.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>

#include "plugins/torch/job.h"

namespace isthmus::plugin {

// A point in an operation's life, as the recorder asks for it.
class Moment {
 public:
  void reach() {
    at_ = std::chrono::steady_clock::now();
    reached_.store(true, std::memory_order_release);
  }

  bool query() const { return reached_.load(std::memory_order_acquire); }

  float milliseconds_since(const Moment& other) const {
    return std::chrono::duration<float, std::milli>(at_ - other.at_).count();
  }

 private:
  std::chrono::steady_clock::time_point at_;
  std::atomic<bool> reached_{false};
};

// Torch hides the recorder that its own backends write to, so this is another one of its type: the
// package adds what is here to the result of torch's dump functions (_torch/flight_recorder.py).
using FlightRecorder = c10d::FlightRecorder<Moment>;

// As torch's hook for backends without a recorder of their own does it: only a buffer size that is
// set asks for records, since each costs more than a small operation.
inline bool flight_recorder_wanted() {
  static const bool wanted =
      c10d::getCvarInt({"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}, 0) > 0;
  return wanted;
}

// What a group is called in the records.
struct GroupTitle {
  std::size_t id = 0;
  std::tuple<std::string, std::string> name;  // and description
};

// The record of one operation; done() must be called before it is destroyed.
class FlightRecord {
 public:
  // Counts begin at 1; of the kind that the operation is not of, the last one.
  struct Counts {
    std::uint64_t collectives = 0;
    std::uint64_t messages = 0;
    std::uint64_t operations = 0;
  };

  FlightRecord(const GroupTitle& group, const Counts& counts, const Job& job, int rank,
               milliseconds timeout, std::shared_ptr<c10d::ProcessGroupStatus> status) {
    begin_.reach();
    id_ = FlightRecorder::get()->record(
        group.id, group.name, counts.collectives, counts.messages, counts.operations,
        title(job, rank), job.inputs.empty() ? job.outputs : job.inputs, job.outputs, &begin_,
        &end_, timeout, std::move(status), is_message(job.type));
  }

  FlightRecord(const FlightRecord&) = delete;
  FlightRecord& operator=(const FlightRecord&) = delete;

  void done() {
    end_.reach();
    FlightRecorder::get()->retire_id(id_, true);
  }

 private:
  // As torch's reader of the records expects it of messages: "isthmus:send 0->1".
  static std::string title(const Job& job, int rank) {
    if (job.peer < 0) {
      return job.title;
    }
    return c10::str(job.title, " ", rank, job.type == OpType::SEND ? "->" : "<-", job.peer);
  }

  Moment begin_;
  Moment end_;
  std::optional<std::size_t> id_;
};

}  // namespace isthmus::plugin

template <>
inline float c10d::getDurationFromEvent<isthmus::plugin::Moment>(isthmus::plugin::Moment& begin,
                                                                 isthmus::plugin::Moment& end) {
  return end.milliseconds_since(begin);
}
