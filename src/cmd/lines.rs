//! The command's standard output, passed on as it comes and looked through for marks.
//!
//! Rule: bytes go on before they are looked at, so the command's output is what it would be without gpumon; each line
//! is matched up to its first 64 KiB. A named group `mark`, `begin` or `end` says what and with which name; without
//! one, the first group, or else the whole match, is the name of a mark.
//! Cases: bytes that are no UTF-8 are replaced in names; names are cleaned and cut. A closed standard output ends the
//! passing on, and the command learns of it as it would without gpumon.
//! Not done here: a command whose output is no terminal may hold it back; that is the command's (`python -u`).

use std::io::{self, BufRead, BufReader, Read, Write};

use crossbeam_channel::Sender;
use gpumon_core::clock::Clock;
use gpumon_core::rows::EventKind;
use gpumon_monitor::marks::{Marked, Request, clean_name};
use regex::bytes::Regex;

/// Bytes of a line that are matched.
const LOOK_MAX: usize = 64 << 10;

/// Passes `from` on to `to` until its end; marks go to `marks`.
pub fn pass_on(
    from: impl Read,
    mut to: impl Write,
    patterns: &[Regex],
    clock: &dyn Clock,
    marks: &Sender<Marked>,
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        let bytes = from.fill_buf()?;
        if bytes.is_empty() {
            look(&line, patterns, clock, marks);
            return Ok(());
        }
        to.write_all(bytes)?;
        to.flush()?;
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            line.extend_from_slice(&piece[..piece.len().min(LOOK_MAX - line.len().min(LOOK_MAX))]);
            if piece.ends_with(b"\n") {
                look(&line, patterns, clock, marks);
                line.clear();
            }
        }
        let length = bytes.len();
        from.consume(length);
    }
}

fn look(line: &[u8], patterns: &[Regex], clock: &dyn Clock, marks: &Sender<Marked>) {
    let line = line.trim_ascii_end();
    for request in patterns.iter().flat_map(|pattern| requests(pattern, line)) {
        // More marks than the recorder takes are not worth stopping the command for.
        let _ = marks.try_send(Marked { request, at: clock.mono() });
    }
}

/// What a line asks for by one pattern; `end` before `begin`, so that one line can change over.
fn requests(pattern: &Regex, line: &[u8]) -> Vec<Request> {
    let Some(found) = pattern.captures(line) else { return Vec::new() };
    let kinds = [("end", EventKind::WindowEnd), ("begin", EventKind::WindowBegin), ("mark", EventKind::Mark)];
    let request = |kind: EventKind, name: &[u8]| {
        clean_name(&String::from_utf8_lossy(name)).map(|name| Request { kind, name })
    };
    let named = kinds.into_iter().filter_map(|(group, kind)| request(kind, found.name(group)?.as_bytes()));
    let named: Vec<Request> = named.collect();
    let has_names = pattern.capture_names().flatten().any(kinds_named);
    if has_names {
        return named;
    }
    let whole = found.get(1).or_else(|| found.get(0));
    whole.and_then(|name| request(EventKind::Mark, name.as_bytes())).into_iter().collect()
}

fn kinds_named(name: &str) -> bool {
    matches!(name, "mark" | "begin" | "end")
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;
    use gpumon_core::clock::RealClock;

    use super::*;

    fn marks(output: &[u8], patterns: &[&str]) -> Vec<(String, String)> {
        let patterns: Vec<Regex> = patterns.iter().map(|p| Regex::new(p).unwrap()).collect();
        let (send, marks) = unbounded();
        let mut passed = Vec::new();
        pass_on(output, &mut passed, &patterns, &RealClock, &send).unwrap();
        assert_eq!(passed, output);
        marks.try_iter().map(|m| (m.request.kind.as_str().into(), m.request.name)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(k, n)| ((*k).into(), (*n).into())).collect()
    }

    #[test]
    fn groups_say_what_a_line_means() {
        let output = b"start 1\nnoise\nstart 2\r\nlast without newline start 3";
        let expected = [("window_end", "e"), ("window_begin", "e")];
        assert_eq!(marks(output, &["start (\\d)"]), pairs(&[("mark", "1"), ("mark", "2"), ("mark", "3")]));
        assert_eq!(marks(b"x done e new e", &["done (?<end>.) new (?<begin>.)"]), pairs(&expected));
        assert_eq!(marks(b"epoch\n", &["epoch"]), pairs(&[("mark", "epoch")]));
        assert_eq!(marks(b"b a\n", &["(?<begin>b)?", "(?<end>z)?"]), pairs(&[("window_begin", "b")]));
        assert_eq!(marks(b"a\xffb\n", &["a.*"]), pairs(&[("mark", "a")]), "`.` is a character");
        assert_eq!(marks(b"a\xffb\n", &["(?-u:a.*)"]), pairs(&[("mark", "a\u{fffd}b")]));
    }

    #[test]
    fn a_line_without_end_is_passed_on_and_not_kept() {
        let mut output = vec![b'x'; 10 << 20];
        output.extend(b"tail\nnext\n");
        assert_eq!(marks(&output, &["tail$", "^next$"]), pairs(&[("mark", "next")]));
    }
}
