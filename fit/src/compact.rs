//! Places in model files, by the levels of their variables.
//!
//! Rule: `levels` has the different values of each of the four variables, `of` four numbers of levels for each place, place after
//! place. A grid of 450 places takes 6 kB so, instead of 17 kB as lists of four.
//!
//! Cases: lists of four are read as well.
//!
//! Not done: shorter values; the same places come back.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::bumps::Place;

#[derive(Serialize, Deserialize)]
struct ByLevels {
    levels: [Vec<f64>; 4],
    of: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Lists(Vec<Place>),
    ByLevels(ByLevels),
}

pub(crate) fn serialize<S: Serializer>(places: &[Place], to: S) -> Result<S::Ok, S::Error> {
    let mut levels: [Vec<f64>; 4] = Default::default();
    let mut of = Vec::with_capacity(4 * places.len());
    for place in places {
        for (levels, value) in levels.iter_mut().zip(place) {
            of.push(levels.iter().position(|l| l == value).unwrap_or_else(|| {
                levels.push(*value);
                levels.len() - 1
            }));
        }
    }
    ByLevels { levels, of }.serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Place>, D::Error> {
    let ByLevels { levels, of } = match Either::deserialize(from)? {
        Either::Lists(places) => return Ok(places),
        Either::ByLevels(by_levels) => by_levels,
    };
    if of.len() % 4 != 0 {
        return Err(D::Error::custom(format!("`of` has {} numbers; expected four a place", of.len())));
    }
    let value = |variable: usize, level: usize| {
        let missing =
            || D::Error::custom(format!("`of` names level {level} of variable {variable}, which has none"));
        levels[variable].get(level).copied().ok_or_else(missing)
    };
    let place = |at: &[usize]| Ok([value(0, at[0])?, value(1, at[1])?, value(2, at[2])?, value(3, at[3])?]);
    of.chunks_exact(4).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        #[serde(with = "super")]
        places: Vec<Place>,
    }

    fn read(text: &str) -> Result<Holder, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn places_come_back_from_levels_and_from_lists() {
        for places in [vec![], vec![[0.0, -0.3567, 0.0, 0.3436], [0.6931, -0.3567, -0.0, 0.3436]]] {
            let lists = serde_json::json!({ "places": places }).to_string();
            let held = Holder { places };
            let text = serde_json::to_string(&held).unwrap();
            assert!(text.contains("levels"));
            assert_eq!(read(&text).unwrap(), held);
            assert_eq!(read(&lists).unwrap(), held);
        }
    }

    #[test]
    fn levels_that_are_not_there_are_refused() {
        let error = |of: &str| {
            read(&format!(r#"{{"places":{{"levels":[[1],[1],[1],[1]],"of":{of}}}}}"#)).unwrap_err()
        };
        assert!(error("[0,0,0,1]").to_string().contains("level 1 of variable 3"));
        assert!(error("[0,0,0]").to_string().contains("four a place"));
        assert!(error("[-1,0,0,0]").to_string().contains("places") || error("[-1]").is_data());
    }
}
