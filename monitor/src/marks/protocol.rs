//! What a client may say, one request a line: `mark NAME`, `begin NAME`, `end NAME`.
//!
//! Rule: UTF-8, a line ends with a newline; a name has 1 to [`NAME_MAX`] bytes and no control characters, spaces around
//! it do not count. The answer is `ok`, or `error: ` and what to do.
//! Not done here: time stamps of the client's; a request counts when it arrives.

use gpumon_core::rows::EventKind;

/// Longest name, bytes.
pub const NAME_MAX: usize = 200;
/// Longest line that a client may send, bytes, with its newline.
pub const LINE_MAX: usize = NAME_MAX + 32;

/// A request that is in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// A mark, or the begin or end of a window.
    pub kind: EventKind,
    /// Its name.
    pub name: String,
}

/// Why a line is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Neither `mark`, `begin` nor `end`.
    #[error("expected `mark NAME`, `begin NAME` or `end NAME`")]
    Unknown,
    /// The name is no name.
    #[error("a name has 1 to {NAME_MAX} bytes of UTF-8 and no control characters")]
    Name,
}

impl Request {
    /// The request in a line, with or without its newline.
    pub fn parse(line: &[u8]) -> Result<Self, RequestError> {
        let text = std::str::from_utf8(line).map_err(|_| RequestError::Name)?.trim_end_matches(['\r', '\n']);
        let (word, name) = text.split_once(' ').unwrap_or((text, ""));
        let kind = match word {
            "mark" => EventKind::Mark,
            "begin" => EventKind::WindowBegin,
            "end" => EventKind::WindowEnd,
            _ => return Err(RequestError::Unknown),
        };
        let name = name.trim();
        let in_order = (1..=NAME_MAX).contains(&name.len()) && !name.contains(char::is_control);
        in_order.then(|| Self { kind, name: name.into() }).ok_or(RequestError::Name)
    }

    /// The line that asks for this, with its newline.
    pub fn line(&self) -> String {
        let word = match self.kind {
            EventKind::WindowBegin => "begin",
            EventKind::WindowEnd => "end",
            _ => "mark",
        };
        format!("{word} {}\n", self.name)
    }
}

/// A name made of any text: without control characters, cut to length; none if nothing is left.
pub fn clean_name(text: &str) -> Option<String> {
    let mut name: String = text.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned();
    while name.len() > NAME_MAX {
        name.pop();
    }
    let name = name.trim_end().to_owned();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lines_are_understood_or_refused_with_the_reason() {
        let request = |line: &str| Request::parse(line.as_bytes());
        let begin = Request { kind: EventKind::WindowBegin, name: "epoch 1".into() };
        assert_eq!(request("begin  epoch 1 \r\n"), Ok(begin));
        for line in ["", "\n", "start x", "BEGIN x", "markx"] {
            assert_eq!(request(line), Err(RequestError::Unknown), "{line:?}");
        }
        let long = format!("mark {}", "x".repeat(NAME_MAX + 1));
        for line in ["mark", "mark  ", "end \t", "mark a\u{7}b", &long] {
            assert_eq!(request(line), Err(RequestError::Name), "{line:?}");
        }
        assert_eq!(Request::parse(b"mark \xff"), Err(RequestError::Name));
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(line in proptest::collection::vec(any::<u8>(), 0..2 * LINE_MAX)) {
            if let Ok(request) = Request::parse(&line) {
                prop_assert_eq!(Request::parse(request.line().as_bytes()), Ok(request));
            }
        }

        #[test]
        fn a_clean_name_is_a_name(text in any::<String>()) {
            if let Some(name) = clean_name(&text) {
                let request = Request { kind: EventKind::Mark, name };
                prop_assert_eq!(Request::parse(request.line().as_bytes()), Ok(request));
            }
        }
    }
}
