#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/net_plugin/channel.h"
#include "perf/net_plugin/net_plugin.h"

namespace isthmus::net_plugin {

// What is measured of one size.
enum class Kind { kLatency, kStream };

struct Case {
  Kind kind = Kind::kLatency;
  std::size_t bytes = 0;
  std::size_t count = 0;  // messages of a burst
};

// One burst. Latency: the median of half a round trip. Stream: of the receiver, from the first
// message's post to the last one's end.
struct Burst {
  double us = 0.0;          // latency, or a message's share of the time
  double gb_per_s = 0.0;    // streams
  double cpu_s_per_gb = 0;  // of both processes; both poll all the time, as NCCL's proxies do
};

// Whose bursts are compared: a plug-in's comms, or bare sockets. Collective between the two
// processes: both call the same in the same order. The numbers are those of rank 0.
class Side {
 public:
  Side() = default;
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  Side(Side&&) = delete;
  Side& operator=(Side&&) = delete;
  virtual ~Side() = default;

  virtual const std::string& label() const = 0;

  // Sends and compares `depth` messages and more of that size, then measures nothing.
  virtual Status verify(const Case& one) = 0;
  virtual Result<Burst> burst(const Case& one) = 0;
};

struct SideOptions {
  int rank = 0;
  int depth = 8;  // messages under way
  int device = 0;
  std::size_t most_bytes = 0;
  std::string address = "127.0.0.1";  // of rank 1, for the bare sockets
};

// `plugin` and `channel` outlive it.
Result<std::unique_ptr<Side>> plugin_side(NetPlugin& plugin, Channel& channel, std::string label,
                                          const SideOptions& options);

// One connection, non-blocking, polled: what the kernel itself gives.
Result<std::unique_ptr<Side>> socket_side(Channel& channel, const SideOptions& options);

// Shared by the sides.
double cpu_seconds();  // of this process so far
double median_of(std::vector<double> values);
void fill_pattern(std::byte* data, std::size_t bytes, std::size_t message);
Status check_pattern(const std::byte* data, std::size_t bytes, std::size_t message,
                     const std::string& label);

// Rank 0's stream burst of what rank 1, the receiver, timed.
Result<Burst> share_stream(Channel& channel, const Case& one, double seconds, double cpu_s);

}  // namespace isthmus::net_plugin
