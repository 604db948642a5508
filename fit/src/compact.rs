//! Places in model files, by the levels of their variables.
//!
//! Rule: `levels` has the different values of each variable, `of` the numbers of levels of each place, place after place. A grid of
//! 450 places takes 6 kB so, instead of 17 kB as lists.
//!
//! Cases: where all places are of one process there are four variables, else five. Lists of four or five are read as well.
//!
//! Not done: shorter values; the same places come back.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::variables::{COUNT, Variables as Place, WITHOUT_PROCESSES, padded};

#[derive(Serialize, Deserialize)]
struct ByLevels {
    levels: Vec<Vec<f64>>,
    of: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Lists(Vec<Vec<f64>>),
    ByLevels(ByLevels),
}

pub(crate) fn serialize<S: Serializer>(places: &[Place], to: S) -> Result<S::Ok, S::Error> {
    let variables =
        if places.iter().all(|place| place[WITHOUT_PROCESSES] == 0.0) { WITHOUT_PROCESSES } else { COUNT };
    let mut levels: Vec<Vec<f64>> = vec![Vec::new(); variables];
    let mut of = Vec::with_capacity(variables * places.len());
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
        Either::Lists(places) => return places.iter().map(|place| padded(place, 0.0)).collect(),
        Either::ByLevels(by_levels) => by_levels,
    };
    let variables = levels.len();
    if !matches!(variables, WITHOUT_PROCESSES | COUNT) || !of.len().is_multiple_of(variables) {
        return Err(D::Error::custom(format!(
            "`of` has {} numbers for {variables} variables; expected four or five a place",
            of.len()
        )));
    }
    let place = |at: &[usize]| -> Result<Place, D::Error> {
        let mut values = [0.0; COUNT];
        for (variable, (value, level)) in values.iter_mut().zip(at).enumerate() {
            *value = *levels[variable].get(*level).ok_or_else(|| {
                D::Error::custom(format!("`of` names level {level} of variable {variable}, which has none"))
            })?;
        }
        Ok(values)
    };
    of.chunks_exact(variables).map(place).collect()
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
        let (one, other) = ([0.0, -0.3567, 0.0, 0.3436, 0.0], [1.3863, -0.3567, -0.0, 0.3436, 0.0]);
        let several = [1.3863, -0.3567, 0.0, 0.3436, 1.0986];
        for places in [vec![], vec![one, other], vec![one, several]] {
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
        assert!(error("[0,0,0]").to_string().contains("four or five a place"));
        assert!(error("[-1,0,0,0]").to_string().contains("places") || error("[-1]").is_data());
    }
}
