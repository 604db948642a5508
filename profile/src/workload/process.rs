//! One worker process: started with its seat's variables, spoken to by lines, ended whatever happens.
//!
//! Rule: a worker has a process group of its own and dies with gpumon (the kernel kills it, even after kill -9); what it
//! writes to standard error is kept, the last of it, for messages. Answers are read by a thread and taken within a time.
//! Cases: a worker that ends, says what is no answer, or says nothing in time is killed with all that it started, and what
//! it wrote last is told.
//! Not done here: what is asked and when ([`super::command`]).

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::wire::{Answer, Ask, LINE_MAX};

/// Lines of answers that wait to be read.
const WAITING: usize = 1_024;
/// So much of standard error is kept, bytes.
const TAIL: usize = 4_096;
/// The last words of a worker that ended arrive within this.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(200);

/// A worker that runs.
pub(super) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<Result<Answer, String>>,
    tail: Arc<Mutex<Vec<u8>>>,
    /// Disconnected once standard error is closed.
    said_all: Receiver<()>,
}

/// Why no answer came; the worker is of no use any more.
pub(super) struct Broken(pub(super) String);

impl Process {
    /// Starts one.
    pub(super) fn start(argv: &[String], env: &[(String, OsString)]) -> Result<Self, Broken> {
        let (program, arguments) = argv.split_first().ok_or_else(|| Broken("no command was given".into()))?;
        let mut command = Command::new(program);
        command.args(arguments).envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        dies_with_us(&mut command);
        let mut child = command.spawn().map_err(|e| Broken(format!("`{program}` cannot be started: {e}")))?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (send, answers) = bounded(WAITING);
        if let Some(output) = output {
            thread::spawn(move || {
                let mut output = BufReader::new(output);
                while let Some(line) = line(&mut output) {
                    let answer = line.and_then(|line| Answer::parse(&line));
                    let odd = answer.is_err();
                    if send.send(answer).is_err() || odd {
                        return;
                    }
                }
            });
        }
        let tail = Arc::new(Mutex::new(Vec::new()));
        let (saying, said_all) = bounded(0);
        if let Some(errors) = errors {
            let tail = Arc::clone(&tail);
            thread::spawn(move || {
                keep_tail(errors, &tail);
                drop(saying);
            });
        }
        Ok(Self { child, input, answers, tail, said_all })
    }

    /// Sends an ask.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<(), Broken> {
        let written = self.input.as_mut().map(|input| input.write_all(ask.line().as_bytes()));
        match written {
            Some(Ok(())) => Ok(()),
            _ => Err(self.broken("ended")),
        }
    }

    /// The next answer; `None` if none came in time.
    pub(super) fn answer(&mut self, within: Duration) -> Result<Option<Answer>, Broken> {
        match self.answers.recv_timeout(within) {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(odd)) => Err(self.broken(&format!("gave no answer of the protocol: {odd}"))),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(self.broken("ended")),
        }
    }

    /// The answer that has to come within a time.
    pub(super) fn answer_within(&mut self, within: Duration, to: &str) -> Result<Answer, Broken> {
        let answer = self.answer(within)?;
        answer.ok_or_else(|| self.broken(&format!("did not answer `{to}` within {} s", within.as_secs_f64())))
    }

    /// What is wrong with it, with its exit status and the last that it wrote to standard error. Kills it.
    pub(super) fn broken(&mut self, what: &str) -> Broken {
        let ended = wait(&mut self.child, Instant::now() + LAST_WORDS_WITHIN);
        self.kill();
        let _ = self.said_all.recv_timeout(LAST_WORDS_WITHIN);
        let status = ended.map_or(String::new(), |status| format!(" with {status}"));
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        let last: Vec<_> = String::from_utf8_lossy(&tail).lines().rev().take(5).map(str::to_owned).collect();
        let last: Vec<_> = last.into_iter().rev().filter(|line| !line.trim().is_empty()).collect();
        let said = if last.is_empty() { String::new() } else { format!("; it wrote: {}", last.join(" | ")) };
        Broken(format!("the worker {what}{status}{said}"))
    }

    /// Asks it to quit, and lets it know that nothing more will come.
    pub(super) fn ask_to_quit(&mut self) {
        let quit = Ask::Quit.line();
        // One that ended already need not.
        let _ = self.input.take().map(|mut input| input.write_all(quit.as_bytes()));
    }

    /// Waits for its end until then, and kills what is left.
    pub(super) fn end_by(mut self, until: Instant) {
        wait(&mut self.child, until);
    }

    fn kill(&mut self) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            // SAFETY: kill takes two numbers. The child was not waited for unless it ended, and its group may outlive it.
            #[allow(unsafe_code, reason = "libc has no safe kill")]
            unsafe {
                libc::kill(-group, libc::SIGKILL);
            }
        }
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Its status, once it has ended; `None` if it still runs then.
fn wait(child: &mut Child, until: Instant) -> Option<std::process::ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

/// The next line with its end; `None` at the end. A line that is too long is an error.
fn line(from: &mut impl std::io::BufRead) -> Option<Result<Vec<u8>, String>> {
    let mut line = Vec::new();
    match from.by_ref().take(LINE_MAX as u64 + 2).read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(Ok(line)),
    }
}

fn keep_tail(mut from: impl Read, tail: &Mutex<Vec<u8>>) {
    let mut piece = [0; 1_024];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(piece.get(..n).unwrap_or_default());
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

/// Has the kernel kill the child when gpumon dies.
fn dies_with_us(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl and getppid are called, which are safe there.
    #[allow(unsafe_code, reason = "a parent-death signal can be set only in the child")]
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // It may have died before the signal was set.
            if libc::getppid() as u32 != parent {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
}
