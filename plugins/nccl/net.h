#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "plugins/nccl/dial.h"
#include "plugins/nccl/handle.h"
#include "plugins/nccl/recv_comm.h"
#include "plugins/nccl/send_comm.h"
#include "transport/tcp/addresses.h"
#include "transport/tcp/interfaces.h"

namespace isthmus::nccl {

// What NCCL is told of a device; no ABI version, see the shims.
struct Device {
  std::string name;
  std::string pci_path;    // "" for none: a device of several cards, or of no card
  std::uint64_t guid = 0;  // equal where the wire is the same
  int speed_mbps = 0;      // of all its rails
  float latency_us = 0;    // one way, small message
};

// A listening comm: what a handle leads to.
struct ListenComm {
  Nonce nonce;
};

// The plug-in without NCCL's types: devices and connections. One per process.
// Thread rule: all functions from any thread.
class Net {
 public:
  static Net& get();

  // Once per communicator, or once per process, as the ABI has it; paired with finish().
  Status init(const std::string& abi);
  void finish();

  int devices() const;
  Result<Device> device(int index) const;

  Result<std::unique_ptr<ListenComm>> listen(int device, std::span<std::byte, kHandleBytes> handle);

  // nullptr: not yet, to be called again with the same memory. Does not wait for accept().
  Result<std::unique_ptr<SendComm>> connect(int device, std::span<std::byte, kHandleBytes> handle);

  // nullptr: nobody called yet.
  static Result<std::unique_ptr<RecvComm>> accept(const ListenComm& listen);
  static void close(const ListenComm& listen);

 private:
  // A connect() that is not over.
  struct Calling {
    Handle handle;
    std::vector<tcp::Candidate> order;
    std::size_t next = 0;     // of `order`
    unsigned rounds = 0;      // through `order`, all refused
    bool all_refused = true;  // in this round
    std::string tried;        // what became of each address in this round
    std::int64_t pause_until_ns = 0;
    std::int64_t until_ns = 0;
    Hello hello;
    std::vector<tcp::Rail> flows;  // of the address that is called just now
    Dial dial;
  };

  Status probe();
  void announce(const std::string& abi) const;
  Result<std::unique_ptr<SendComm>> step(Calling* calling);
  void call_next(Calling* calling, std::int64_t now_ns);
  Status call_failed(Calling* calling, std::int64_t now_ns);
  std::vector<tcp::Rail> plan_flows(const Calling& calling, const tcp::Candidate& to) const;
  static std::unique_ptr<SendComm> finish_call(Calling* calling);

  mutable std::mutex mutex_;
  int users_ = 0;
  bool probed_ = false;
  std::vector<Device> devices_;
  tcp::Address ours_;
  std::string refused_;  // interfaces that are not used, and why
  std::string rails_;    // those that are
  std::map<std::uint64_t, std::unique_ptr<Calling>> calling_;  // by token
};

// Tests a request: whether it is done, and then its bytes; a done request is over.
Result<bool> test_request(Request* request, std::uint64_t* bytes);

}  // namespace isthmus::nccl
