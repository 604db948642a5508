//! Marks and windows from other processes, through a Unix socket.
//!
//! ```text
//! gpumon begin NAME, a script, a training loop
//!    │  $GPUMON_SOCKET: one line a request (see `protocol`), answered `ok` once it is taken
//!    ▼
//! Server   a folder of its own, 0700; peers of the same user or root only; a thread a connection
//!    │  Marked: the request and when it arrived
//!    ▼
//! whoever records: an event, and for windows a reading of the energy counters
//! ```
//!
//! Cases: what a killed recorder left behind is removed by the next one; more than [`CONNECTIONS_MAX`] clients, or more
//! requests than are taken, are refused with the reason. Nothing a client does can end or delay a recording.
//! Not done here: marks from other machines or other users.

mod client;
pub mod protocol;
mod server;

pub use client::{ClientError, send, socket};
pub use protocol::{Request, clean_name};
pub use server::{CONNECTIONS_MAX, Marked, Server};

/// Environment variable that holds the socket's path.
pub const SOCKET_VARIABLE: &str = "GPUMON_SOCKET";
/// What the folders of sockets begin with; the process id follows.
const FOLDER_PREFIX: &str = "gpumon-";
/// Name of the socket in its folder.
const SOCKET_NAME: &str = "marks";

/// Where sockets are: the user's runtime folder, else the one for temporary files.
pub(crate) fn runtime_folder() -> std::path::PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(std::path::PathBuf::from);
    runtime.filter(|folder| folder.is_dir()).unwrap_or_else(std::env::temp_dir)
}

/// Folders of sockets with the process that made them.
fn folders() -> Vec<(std::path::PathBuf, u32)> {
    let entries = std::fs::read_dir(runtime_folder()).into_iter().flatten().flatten();
    let of_gpumon = entries.filter_map(|entry| {
        let name = entry.file_name();
        let pid = name.to_str()?.strip_prefix(FOLDER_PREFIX)?.split('-').next()?.parse().ok()?;
        Some((entry.path(), pid))
    });
    of_gpumon.collect()
}

/// Whether a process of this id runs.
fn runs(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
