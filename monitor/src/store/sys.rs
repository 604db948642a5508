//! The libc edge of the store: advisory locks on a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Tries to lock a file without waiting; false if somebody else holds it. The lock ends with the
/// last descriptor of this opening of the file, so also when the process is killed.
pub(super) fn try_lock(file: &File, exclusive: bool) -> io::Result<bool> {
    let kind = if exclusive { libc::LOCK_EX } else { libc::LOCK_SH };
    loop {
        // SAFETY: the descriptor is open as long as `file` is borrowed; flock touches no memory.
        if unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EWOULDBLOCK) => return Ok(false),
            _ => return Err(error),
        }
    }
}
