//! A point as smooth processes see it, and how it stands in model files.
//!
//! Rule: the variables are ln(batch), ln(share of the SMs), ln(share of the memory), ln(clock in GHz) and ln(processes).
//!
//! Cases: where all points are of one process, files leave the fifth variable out, as they did before there was one. A correction
//! that was fitted on such points does not change with the number of processes: its length over it is infinite, and absent
//! from the file.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::point::Point;

/// How many there are.
pub const COUNT: usize = 5;
/// What files have where all points are of one process.
pub(crate) const WITHOUT_PROCESSES: usize = 4;

/// One value a variable.
pub type Variables = [f64; COUNT];

/// The variables of a point; `None` for a MIG instance that does not exist.
pub(crate) fn variables(point: &Point) -> Option<Variables> {
    let (batch, share) = (point.batch_items().ln(), point.share.sms().ln());
    let all = [batch, share, point.share.memory()?.ln(), point.ghz().ln(), point.processes_count().ln()];
    // Four decimals are 0.01 % of each; more would only make files larger.
    Some(all.map(|v| (v * 1e4).round() / 1e4))
}

/// Four or five numbers, the fifth `absent` where there is none.
pub(crate) fn padded<E: Error>(numbers: &[f64], absent: f64) -> Result<Variables, E> {
    let mut all = [absent; COUNT];
    if !matches!(numbers.len(), WITHOUT_PROCESSES | COUNT) {
        return Err(E::invalid_length(numbers.len(), &"4 or 5 numbers"));
    }
    all.iter_mut().zip(numbers).for_each(|(to, from)| *to = *from);
    Ok(all)
}

/// Lengths over the variables in files.
pub(crate) mod lengths {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(lengths: &Variables, to: S) -> Result<S::Ok, S::Error> {
        let shown = if lengths[WITHOUT_PROCESSES].is_finite() { COUNT } else { WITHOUT_PROCESSES };
        lengths[..shown].serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Variables, D::Error> {
        padded(&Vec::<f64>::deserialize(from)?, f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Kept {
        #[serde(with = "lengths")]
        lengths: Variables,
    }

    #[test]
    fn the_fifth_length_is_in_files_only_where_it_says_something() {
        let one = r#"{"lengths":[1.0,2.0,3.0,4.0]}"#;
        let kept: Kept = serde_json::from_str(one).unwrap();
        assert_eq!(kept.lengths[4], f64::INFINITY);
        assert_eq!(serde_json::to_string(&kept).unwrap(), one);
        let several = Kept { lengths: [1.0; 5] };
        let text = serde_json::to_string(&several).unwrap();
        assert_eq!(serde_json::from_str::<Kept>(&text).unwrap(), several);
        assert!(serde_json::from_str::<Kept>(&one.replace(",4.0]", "]")).is_err());
    }
}
