//! The other side: finding a recorder's socket, and asking for a mark.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::protocol::Request;
use super::server::answers;
use super::{SOCKET_NAME, SOCKET_VARIABLE, folders};

/// How long a recorder has to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a mark was not set.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody records here.
    #[error(
        "no recording of this user takes marks; start `gpumon record` or `gpumon run` first, or name its socket"
    )]
    Nobody,
    /// More than one recording takes marks.
    #[error("several recordings take marks; set {SOCKET_VARIABLE} or --socket to one of {}", list(.0))]
    Several(Vec<PathBuf>),
    /// The socket does not work.
    #[error("`{}`: {error}; has the recording ended?", socket.display())]
    Io {
        /// The socket.
        socket: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// The recorder refused.
    #[error("the recorder answered `{0}`")]
    Refused(String),
}

fn list(sockets: &[PathBuf]) -> String {
    sockets.iter().map(|s| format!("`{}`", s.display())).collect::<Vec<_>>().join(", ")
}

/// The socket of the environment, else that of the only recording of this user.
pub fn socket() -> Result<PathBuf, ClientError> {
    if let Some(path) = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let sockets = folders().into_iter().map(|(folder, _)| folder.join(SOCKET_NAME));
    let mut live: Vec<PathBuf> = sockets.filter(|socket| answers(socket)).collect();
    match (live.pop(), live.is_empty()) {
        (None, _) => Err(ClientError::Nobody),
        (Some(only), true) => Ok(only),
        (Some(last), false) => {
            live.push(last);
            live.sort();
            Err(ClientError::Several(live))
        }
    }
}

/// Asks the recorder at `socket`; returns once it has taken the request.
pub fn send(socket: &Path, request: &Request) -> Result<(), ClientError> {
    let io = |error| ClientError::Io { socket: socket.into(), error };
    let mut stream = UnixStream::connect(socket).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.write_all(request.line().as_bytes()).map_err(io)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(io)?;
    match answer.trim_end() {
        "ok" => Ok(()),
        other => Err(ClientError::Refused(other.into())),
    }
}
