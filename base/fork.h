#pragma once

namespace isthmus {

// Fork safety. A child of fork() (a DataLoader worker, say) must not keep our sockets, shared
// memory or locks alive, and must not use the library. The first call of install_fork_handlers()
// registers a pthread_atfork child handler that closes every descriptor listed by Fd and marks
// the library dead in the child. Idempotent, any thread.
void install_fork_handlers();

// True in a child forked after install_fork_handlers(): every entry point refuses to work.
bool forked_child();

// For Fd only: keeps the list that the child handler walks. Async-signal-safe, lock-free.
void list_descriptor(int fd);
void unlist_descriptor(int fd);

}  // namespace isthmus
