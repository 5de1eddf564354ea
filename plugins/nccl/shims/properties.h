#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::nccl::shims {

// ncclNetProperties of each version, restated: names and order are the ABI's facts. NCCL passes
// memory that is not initialised, so every byte is written.

struct PropertiesV6 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
};

static_assert(sizeof(PropertiesV6) == 48 && offsetof(PropertiesV6, speed) == 28);

struct PropertiesV7 : PropertiesV6 {
  int device_type;
  int device_version;
};

static_assert(sizeof(PropertiesV7) == 56);

struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
};

static_assert(sizeof(PropertiesV8) == 64 && offsetof(PropertiesV8, speed) == 32 &&
              offsetof(PropertiesV8, device_type) == 52);

template <std::size_t kDevices>
struct Virtual {
  int count;
  int devices[kDevices];
};

// Versions 9 and 10.
struct PropertiesV9 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  Virtual<4> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
};

static_assert(sizeof(PropertiesV9) == 104 && offsetof(PropertiesV9, speed) == 36 &&
              offsetof(PropertiesV9, virtual_device) == 64 &&
              offsetof(PropertiesV9, max_p2p_bytes) == 88);

struct PropertiesV11 : PropertiesV9 {
  int max_multi_request_size;
};

static_assert(sizeof(PropertiesV11) == 112);

struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int ptr_support;
  int reg_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_recvs;
  int device_type;
  int device_version;
  Virtual<8> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_coll_bytes;
  int max_multi_request_size;
  std::int16_t rail_id;
  std::int16_t plane_id;
};

static_assert(sizeof(PropertiesV12) == 128 && offsetof(PropertiesV12, virtual_device) == 64 &&
              offsetof(PropertiesV12, max_p2p_bytes) == 104 &&
              offsetof(PropertiesV12, rail_id) == 124);

}  // namespace isthmus::nccl::shims
