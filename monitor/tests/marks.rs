//! The socket of marks, and clients that do not behave. One test, because the socket's place is the environment's.
#![allow(clippy::unwrap_used, reason = "a panic is a test's report, in its helpers too")]
#![allow(unsafe_code, reason = "the environment is set before any other thread runs")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use gpumon_core::clock::{Clock, RealClock};
use gpumon_core::rows::EventKind;
use gpumon_monitor::marks::{self, CONNECTIONS_MAX, ClientError, Request, SOCKET_VARIABLE, Server};

fn ask(socket: &UnixStream, bytes: &[u8]) -> String {
    let mut socket = socket;
    socket.write_all(bytes).unwrap();
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn marks_arrive_and_nothing_a_client_does_stops_others() {
    let runtime = tempfile::tempdir().unwrap();
    // SAFETY: no other thread of this test process reads or writes the environment yet.
    unsafe {
        std::env::set_var("XDG_RUNTIME_DIR", runtime.path());
        std::env::remove_var(SOCKET_VARIABLE);
    }
    assert!(matches!(marks::socket(), Err(ClientError::Nobody)));
    let dead = runtime.path().join("gpumon-4194304-0");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("marks"), "").unwrap();

    let server = Server::open(Arc::new(RealClock)).unwrap();
    assert!(!dead.exists(), "what a killed recorder left is removed");
    let path = server.socket();
    let folder = path.parent().unwrap();
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);

    assert_eq!(marks::socket().unwrap(), path);
    let before = RealClock.mono();
    let request = Request { kind: EventKind::WindowBegin, name: "epoch 1".into() };
    marks::send(&path, &request).unwrap();
    let marked = server.requests().recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(marked.request, request);
    assert!(marked.at >= before && marked.at <= RealClock.mono());

    let connect = || {
        let socket = UnixStream::connect(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    };
    let client = connect();
    assert!(ask(&client, b"launch x\n").starts_with("error: expected `mark NAME`"));
    assert!(ask(&client, b"mark \xff\n").starts_with("error: a name"));
    assert_eq!(ask(&client, b"mark still here\n"), "ok\n", "a wrong line ends nothing");
    let flood = connect();
    assert!(ask(&flood, &[b'x'; 4096]).starts_with("error: the line is too long"));
    drop(connect());
    let silent: Vec<UnixStream> = (0..CONNECTIONS_MAX).map(|_| connect()).collect();
    let mut refused = String::new();
    let late: Vec<UnixStream> = (0..3).map(|_| connect()).collect();
    (&late[2]).take(100).read_to_string(&mut refused).unwrap();
    assert!(refused.contains("too many connections"), "{refused}");
    assert_eq!(ask(&client, b"mark among many\n"), "ok\n");
    drop((silent, late));

    let second = Server::open(Arc::new(RealClock)).unwrap();
    assert!(matches!(marks::socket(), Err(ClientError::Several(both)) if both.len() == 2));
    drop(second);
    for _ in 0..2000 {
        let answer = ask(&client, b"end flood\n");
        assert!(answer == "ok\n" || answer.contains("too many requests"), "{answer}");
    }
    drop(server);
    assert!(!folder.exists());
    assert!(ask(&client, b"mark late\n").contains("the recording has ended"));
    assert!(matches!(marks::send(&path, &request), Err(ClientError::Io { .. })));
}
