//! Values of arguments: what is accepted, and what is said of the rest.

use std::time::Duration;

use gpumon_monitor::record::RATE_HZ;

/// A span in µs; open ends are absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The text as given, which names the window.
    pub text: String,
    /// Start, µs.
    pub from_us: Option<i64>,
    /// End, µs.
    pub to_us: Option<i64>,
}

pub(super) fn rate(text: &str) -> Result<f64, String> {
    let hz: f64 = text.parse().map_err(|_| "expected a number of Hz".to_owned())?;
    if RATE_HZ.contains(&hz) {
        Ok(hz)
    } else {
        Err(format!(
            "expected {} to {} Hz; no sensor changes faster than 50 times a second",
            RATE_HZ.start(),
            RATE_HZ.end()
        ))
    }
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|v| v.is_finite() && *v > 0.0);
    number.ok_or_else(|| "expected a number above 0".to_owned())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time of up to ten years, such as 30, 500ms, 90s, 10m or 24h".to_owned();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match &text[digits.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected()),
    };
    let seconds = digits.parse::<f64>().map_err(|_| expected())? * unit_s;
    const TEN_YEARS_S: f64 = 10.0 * 365.25 * 86_400.0;
    if (0.0..=TEN_YEARS_S).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(expected())
    }
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    let expected = "expected a percentage from 0.01 to 100";
    let percent: f64 = text.trim_end_matches('%').trim().parse().map_err(|_| expected.to_owned())?;
    if (0.01..=100.0).contains(&percent) { Ok(percent) } else { Err(expected.into()) }
}

pub(super) fn marker(text: &str) -> Result<regex::bytes::Regex, String> {
    regex::bytes::Regex::new(text).map_err(|e| e.to_string())
}

pub(super) fn length(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(d) if d < Duration::from_millis(1) => Err("expected at least 1ms".into()),
        other => other,
    }
}

#[cfg(feature = "exporter")]
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(d) if RATE_HZ.contains(&(1.0 / d.as_secs_f64())) => Ok(d),
        _ => Err("expected a time of 1ms to 10s".into()),
    }
}

pub(super) fn not_negative(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|v: &f64| v.is_finite() && *v >= 0.0)
        .ok_or_else(|| "expected a number of at least 0".into())
}

pub(super) fn pue(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|v: &f64| v.is_finite() && *v >= 1.0)
        .ok_or_else(|| "expected a number of at least 1".into())
}

pub(super) fn span(text: &str) -> Result<Span, String> {
    let expected =
        || "expected FROM..TO in seconds since the start, FROM before TO, such as 1.5..20".to_owned();
    let (from, to) = text.split_once("..").ok_or_else(expected)?;
    let us = |part: &str| match part.trim() {
        "" => Ok(None),
        number => not_negative(number).map(|s| Some((s * 1e6) as i64)).map_err(|_| expected()),
    };
    let span = Span { text: text.into(), from_us: us(from)?, to_us: us(to)? };
    let forward = span.to_us.is_none_or(|to| span.from_us.unwrap_or(0) < to);
    if forward { Ok(span) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5m"), Ok(Duration::from_secs(90)));
        for wrong in ["", "s", "-1", "1d", "nan", "inf", "1e99", "5 s x", "µs"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_may_be_open() {
        let span = |t| span(t).map(|s| (s.from_us, s.to_us));
        assert_eq!(span("1.5..20"), Ok((Some(1_500_000), Some(20_000_000))));
        assert_eq!(span("..3"), Ok((None, Some(3_000_000))));
        assert_eq!(span("2.."), Ok((Some(2_000_000), None)));
        for wrong in ["5", "3..2", "3..3", "a..b", "-1..2"] {
            assert!(span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_have_bounds() {
        assert_eq!(rate("1000"), Ok(1000.0));
        for wrong in ["0", "-5", "1001", "nan", "fast"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
