//! The recorder's side of the socket.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use gpumon_core::clock::Clock;
use gpumon_core::units::MonoUs;

use super::protocol::{LINE_MAX, Request};
use super::{FOLDER_PREFIX, SOCKET_NAME, folders, runs, runtime_folder};

/// Most clients at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// Requests that wait to be taken.
const WAITING_MAX: usize = 1024;

/// A request and when it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// What was asked.
    pub request: Request,
    /// When, on the recorder's clock.
    pub at: MonoUs,
}

/// The socket; it goes away with this.
pub struct Server {
    folder: PathBuf,
    requests: Receiver<Marked>,
}

impl Server {
    /// Opens a socket and serves it. `clock` stamps requests.
    pub fn open(clock: Arc<dyn Clock>) -> io::Result<Self> {
        remove_left_behind();
        let folder = new_folder()?;
        let (send, requests) = bounded(WAITING_MAX);
        // Made before the socket, so that the folder goes if binding fails.
        let server = Self { folder, requests };
        let listener = UnixListener::bind(server.socket())?;
        thread::Builder::new().name("marks".into()).spawn(move || accept(&listener, &send, &clock))?;
        Ok(server)
    }

    /// The socket's path, for [`super::SOCKET_VARIABLE`].
    pub fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET_NAME)
    }

    /// Requests in the order of their arrival.
    pub fn requests(&self) -> &Receiver<Marked> {
        &self.requests
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A folder that nobody else can enter and that was not there before.
fn new_folder() -> io::Result<PathBuf> {
    let place = runtime_folder();
    let pid = std::process::id();
    let mut number = 0;
    loop {
        let folder = place.join(format!("{FOLDER_PREFIX}{pid}-{number}"));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
            Err(e) => return Err(e),
        }
    }
}

/// Removes the folders of recorders that were killed. Those of other users cannot be removed, and stay; those of other
/// containers answer.
fn remove_left_behind() {
    let dead = |(folder, pid): &(PathBuf, u32)| !runs(*pid) && !answers(&folder.join(SOCKET_NAME));
    for (folder, _) in folders().into_iter().filter(dead) {
        let _ = fs::remove_file(folder.join(SOCKET_NAME));
        let _ = fs::remove_dir(&folder);
    }
}

fn accept(listener: &UnixListener, send: &Sender<Marked>, clock: &Arc<dyn Clock>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        if !is_trusted(&stream) {
            let _ = stream.write_all(b"error: only the user who records may set marks\n");
            continue;
        }
        if connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, Ordering::SeqCst);
            let _ = stream.write_all(b"error: too many connections; close some\n");
            continue;
        }
        let (send, clock, open) = (send.clone(), clock.clone(), connections.clone());
        let served = thread::Builder::new().name("mark".into()).spawn(move || {
            // A client that goes away is not our concern.
            let _ = serve(stream, &send, clock.as_ref());
            open.fetch_sub(1, Ordering::SeqCst);
        });
        if served.is_err() {
            connections.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn serve(stream: UnixStream, send: &Sender<Marked>, clock: &dyn Clock) -> io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut lines = BufReader::with_capacity(LINE_MAX, stream);
    let mut line = Vec::with_capacity(LINE_MAX);
    loop {
        line.clear();
        let length = lines.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line)?;
        if length == 0 {
            return Ok(());
        }
        if length == LINE_MAX && line.last() != Some(&b'\n') {
            // Where the next request begins is not known any more.
            return answers.write_all(b"error: the line is too long\n");
        }
        let at = clock.mono();
        let answer = match Request::parse(&line) {
            Err(e) => format!("error: {e}\n"),
            Ok(request) => match send.try_send(Marked { request, at }) {
                Ok(()) => "ok\n".into(),
                Err(TrySendError::Full(_)) => "error: too many requests at once; try again\n".into(),
                Err(TrySendError::Disconnected(_)) => "error: the recording has ended\n".into(),
            },
        };
        answers.write_all(answer.as_bytes())?;
    }
}

/// Whether the other end is this user or root. The folder keeps others out already; this holds where it does not.
#[allow(unsafe_code)]
fn is_trusted(stream: &UnixStream) -> bool {
    use std::os::fd::AsRawFd;
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open while `stream` lives; `peer` and `size` are places for what is written.
    let answer = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    // SAFETY: takes and changes nothing.
    let own = unsafe { libc::geteuid() };
    answer == 0 && (peer.uid == own || peer.uid == 0)
}

/// Whether a path is a socket that can be connected to.
pub(super) fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}
