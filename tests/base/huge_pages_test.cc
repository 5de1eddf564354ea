// Goal: huge pages change no byte, and where there are none nothing else fails. Method: collapse
// patterned memory, aligned and not, mapped twice, and under a filter that forbids the call.

#include "base/huge_pages.h"

#include <array>
#include <cerrno>
#include <cstdint>

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace isthmus {
namespace {

constexpr std::size_t kBytes = 2 * kHugePageBytes;

std::uint32_t pattern(std::size_t i) {
  return static_cast<std::uint32_t>(i) * 2654435761U;
}

// A memfd of kBytes, mapped twice: at a multiple of kHugePageBytes, and anywhere.
class HugePages : public ::testing::Test {
 protected:
  void SetUp() override {
    fd_ = ::memfd_create("huge-pages-test", MFD_CLOEXEC);
    ASSERT_GE(fd_, 0);
    ASSERT_EQ(::ftruncate(fd_, kBytes), 0);
    space_ =
        ::mmap(nullptr, kBytes + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(space_, MAP_FAILED);
    void* const aligned =
        reinterpret_cast<void*>(align_huge(reinterpret_cast<std::uintptr_t>(space_)));
    constexpr int kAccess = PROT_READ | PROT_WRITE;
    ASSERT_EQ(::mmap(aligned, kBytes, kAccess, MAP_SHARED | MAP_FIXED, fd_, 0), aligned);
    data_ = static_cast<std::byte*>(aligned);
    other_ = ::mmap(nullptr, kBytes, kAccess, MAP_SHARED, fd_, 0);
    ASSERT_NE(other_, MAP_FAILED);
    // The first page stays untouched, as the last ones of staging do.
    for (std::size_t i = 1024; i < kBytes / sizeof(std::uint32_t); ++i) {
      words(data_)[i] = pattern(i);
    }
  }

  void TearDown() override {
    ::munmap(space_, kBytes + kHugePageBytes);
    ::munmap(other_, kBytes);
    ::close(fd_);
  }

  static std::uint32_t* words(void* data) { return static_cast<std::uint32_t*>(data); }

  bool intact() const {
    for (std::size_t i = 0; i < kBytes / sizeof(std::uint32_t); ++i) {
      const std::uint32_t wanted = i < 1024 ? 0 : pattern(i);
      if (words(data_)[i] != wanted || words(other_)[i] != wanted) {
        return false;
      }
    }
    return true;
  }

  int fd_ = -1;
  void* space_ = nullptr;
  std::byte* data_ = nullptr;
  void* other_ = nullptr;
};

TEST_F(HugePages, KeepEveryByteInEveryMapping) {
  const Status collapsed = collapse_huge_pages(data_, kBytes);
  EXPECT_TRUE(intact());
  words(data_)[5] = 7;
  EXPECT_EQ(words(other_)[5], 7U);
  if (!collapsed.ok()) {
    GTEST_SKIP() << collapsed.error().message;
  }
}

TEST_F(HugePages, UntouchedMemoryBecomesZeroes) {
  ASSERT_EQ(::madvise(data_, kBytes, MADV_REMOVE), 0);
  static_cast<void>(collapse_huge_pages(data_, kBytes));
  EXPECT_EQ(words(data_)[kBytes / 8], 0U);
}

TEST_F(HugePages, AreRefusedInPartsOfOnes) {
  for (const Status& refused : {collapse_huge_pages(data_ + 4096, kHugePageBytes),
                                collapse_huge_pages(data_, kHugePageBytes - 4096)}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kUnsupported);
  }
  EXPECT_TRUE(intact());
}

// In a child: the filter stays for good.
TEST_F(HugePages, ThatAreForbiddenDoNoHarm) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::array<sock_filter, 4> program = {
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog filter = {.len = program.size(), .filter = program.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      ::_exit(77);
    }
    const Status refused = collapse_huge_pages(data_, kBytes);
    ::_exit(!refused.ok() && refused.error().code == Code::kUnsupported &&
                    refused.error().sys_errno == EPERM && intact()
                ? 0
                : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
    GTEST_SKIP() << "no filter of system calls here";
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace isthmus
