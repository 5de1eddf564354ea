#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace isthmus::net_plugin {

inline constexpr std::size_t kHandleBytes = 128;
inline constexpr int kPointerHost = 1;
inline constexpr int kPointerCuda = 2;

// What is common to the properties of all versions.
struct Properties {
  const char* name = nullptr;
  const char* pci_path = nullptr;  // null for a virtual device
  int pointers = 0;                // bits: kPointerHost, ...
  int speed_mbit = 0;
  float latency_us = 0.0F;
  int max_comms = 0;
  int max_recvs = 0;
  std::size_t max_p2p_bytes = 1;  // before version 9: not stated
};

// One version of the network that a plug-in exports, called as NCCL calls it: results are
// ncclResult_t, 0 for success, and *request or *comm null for "not yet". The library stays loaded
// as long as this lives. Thread rule: as NCCL's, one thread a comm, any for reg and properties.
class NetPlugin {
 public:
  // Versions that the library at `path` exports, newest first.
  static Result<std::vector<int>> versions(const std::string& path);

  // Loads it and takes one version, 0 for the newest.
  static Result<std::unique_ptr<NetPlugin>> load(const std::string& path, int version);

  NetPlugin() = default;
  NetPlugin(const NetPlugin&) = delete;
  NetPlugin& operator=(const NetPlugin&) = delete;
  NetPlugin(NetPlugin&&) = delete;
  NetPlugin& operator=(NetPlugin&&) = delete;
  virtual ~NetPlugin() = default;

  virtual int version() const = 0;
  virtual const char* name() const = 0;
  virtual int init() = 0;
  virtual int finalize() = 0;  // before version 11 there is none: 0
  virtual int devices(int* count) = 0;
  virtual int properties(int device, Properties* out) = 0;
  virtual int listen(int device, void* handle, void** comm) = 0;
  virtual int connect(int device, void* handle, void** comm) = 0;
  virtual int accept(void* listening, void** comm) = 0;
  virtual int reg(void* comm, void* data, std::size_t bytes, int type, void** region) = 0;
  virtual int dereg(void* comm, void* region) = 0;
  virtual int send(void* comm, void* data, std::size_t bytes, int tag, void* region,
                   void** request) = 0;
  virtual int recv(void* comm, void* data, std::size_t bytes, int tag, void* region,
                   void** request) = 0;
  virtual int test(void* request, int* done, int* bytes) = 0;
  virtual int close_send(void* comm) = 0;
  virtual int close_recv(void* comm) = 0;
  virtual int close_listen(void* comm) = 0;
};

// What ncclResult_t says.
const char* result_name(int result);

// Lines that the plug-in logs at INFO and above go to stderr; off by default.
void show_log(bool on);

}  // namespace isthmus::net_plugin
