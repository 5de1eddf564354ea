#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isthmus {

// Facts of this machine that `isthmus info` prints and `isthmus doctor` judges. Each is read from
// the kernel when asked for; absent where the kernel does not tell.

// First line of a file of /proc or /sys.
std::optional<std::string> first_line(const std::string& path);

// Size and free bytes of the file system at a path.
struct FileSystemSpace {
  std::uint64_t bytes = 0;
  std::uint64_t free_bytes = 0;
};

std::optional<FileSystemSpace> space_of(const std::string& path);

// Soft and hard value of a limit, RLIMIT_*; the largest number means unlimited.
struct Limit {
  std::uint64_t soft = 0;
  std::uint64_t hard = 0;
};

std::optional<Limit> limit_of(int resource);

// "unlimited", or the number.
std::string limit_text(std::uint64_t value);

// A field of /proc/meminfo, in the unit that it has there ("HugePages_Total": pages, "MemTotal":
// KiB).
std::optional<std::uint64_t> meminfo(const std::string& field);

struct Interface {
  std::string name;
  bool up = false;
  bool loopback = false;
  std::vector<std::string> addresses;       // IPv4 and IPv6, as text
  std::optional<std::uint64_t> speed_mbit;  // as its driver says, which virtual ones do not
  std::optional<std::uint64_t> mtu;
};

// Network interfaces with an address.
std::vector<Interface> interfaces();

// errno of a system call that isthmus needs, tried out here; 0 when it works.
int try_memfd();
int try_pidfd();
int try_eventfd();
int try_passing_descriptors();
int try_named_shared_memory();
int try_sealing();

// Reads a word of this process from a forked child, as ranks read each other: a rank is no
// descendant of another, which the kernel (yama) may ask for.
int try_cross_process_copy();

}  // namespace isthmus
