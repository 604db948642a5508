//! Profiles of one sweep's parts, put together.
//!
//! Rule: what tells rows apart is the point and the GPU it was measured on. Rows come out in one order (idle rows, then models
//! by name, share, batch size, clock, GPU), whatever the order of the files, so merging again or the other way round gives the
//! same file.
//! Cases: a row that stands in several files the same is there once, whatever its note. A point that failed in one file and was
//! measured in another is the measured one. Of idle rows at one clock of one GPU, which each part measures, the one of least
//! power stays: a GPU still warm from work draws more. Two measurements of one point on one GPU that differ contradict each other, and
//! nothing is merged. The same point on two GPUs stays two rows, and a notice says that there are several GPUs.
//! Not done here: comparing GPUs; a fit takes the mean of rows of one point.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use gpumon_core::profile::{PointKey, ProfileRow};

/// Profiles put together.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The rows.
    pub rows: Vec<ProfileRow>,
    /// Rows that stood in several files.
    pub repeated: usize,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// Why profiles cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// Two rows of one point on one GPU differ.
    #[error(
        "`{first}` and `{second}` contradict each other: `{model}`, batch {batch}, share {share}, {mhz} MHz was measured twice on one \
         GPU, and the rows differ; leave one of the files, or that row, out"
    )]
    Contradiction {
        /// A file.
        first: String,
        /// The other.
        second: String,
        /// The model.
        model: String,
        /// Items in a batch.
        batch: i32,
        /// Share of the SMs, in a form that can be compared.
        share: ShareText,
        /// Clock, MHz.
        mhz: i32,
    },
    /// The files are of different kinds of GPU.
    #[error("the rows are of several kinds of GPU ({0}); merge each kind by itself")]
    SeveralKinds(String),
    /// Measured and simulated rows.
    #[error("some rows are simulated and others are not; merge them apart")]
    Simulated,
}

/// A share of the SMs in millionths, which prints as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareText(pub i64);

impl std::fmt::Display for ShareText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3}", self.0 as f64 / 1e6)
    }
}

/// Puts profiles, each with its file's name, together.
///
/// # Errors
///
/// As [`MergeError`] says.
pub fn merge(files: &[(String, Vec<ProfileRow>)]) -> Result<Merged, MergeError> {
    let rows = || files.iter().flat_map(|(_, rows)| rows);
    let distinct = |value: fn(&ProfileRow) -> Option<&String>| {
        let mut all: Vec<&String> = rows().filter_map(value).collect();
        all.sort();
        all.dedup();
        all.into_iter().map(String::as_str).collect::<Vec<_>>()
    };
    let kinds = distinct(|r| r.gpu_name.as_ref());
    if kinds.len() > 1 {
        return Err(MergeError::SeveralKinds(kinds.join(", ")));
    }
    if rows().any(|r| r.simulated == Some(true)) && rows().any(|r| r.simulated == Some(false)) {
        return Err(MergeError::Simulated);
    }
    let mut taken: BTreeMap<(bool, PointKey, Option<String>), (usize, &ProfileRow)> = BTreeMap::new();
    let mut repeated = 0;
    for (file, row) in files.iter().enumerate().flat_map(|(i, (_, rows))| rows.iter().map(move |r| (i, r))) {
        let key = (!row.is_idle(), row.key(), row.gpu_uuid.clone());
        let Some((other, before)) = taken.get(&key).copied() else {
            taken.insert(key, (file, row));
            continue;
        };
        if row.valid && before.valid && !row.is_idle() && !same_figures(row, before) {
            return Err(MergeError::Contradiction {
                first: files[other].0.clone(),
                second: files[file].0.clone(),
                model: row.model.clone(),
                batch: row.batch_size,
                share: ShareText(row.key().share_ppm),
                mhz: row.frequency,
            });
        }
        repeated += 1;
        if order(row, before).is_lt() {
            taken.insert(key, (file, row));
        }
    }
    let gpus = distinct(|r| r.gpu_uuid.as_ref());
    let mut notices = Vec::new();
    if gpus.len() > 1 {
        notices.push(format!(
            "the rows are of {} GPUs ({}); cards of one kind differ by some percent, and each row keeps its GPU's UUID",
            gpus.len(),
            gpus.join(", ")
        ));
    }
    let rows = taken.into_values().map(|(_, row)| row.clone()).collect();
    Ok(Merged { rows, repeated, notices })
}

fn same_figures(a: &ProfileRow, b: &ProfileRow) -> bool {
    ProfileRow { reason: None, ..a.clone() } == ProfileRow { reason: None, ..b.clone() }
}

/// Which of two rows stays, whatever the order of the files: the measured one, of least power, of the text that comes first.
fn order(a: &ProfileRow, b: &ProfileRow) -> Ordering {
    let watts = |row: &ProfileRow| row.avg_power_draw.unwrap_or(f64::INFINITY);
    let text = |row: &ProfileRow| serde_json::to_string(row).unwrap_or_default();
    b.valid.cmp(&a.valid).then(watts(a).total_cmp(&watts(b))).then_with(|| text(a).cmp(&text(b)))
}

#[cfg(test)]
mod tests {
    use gpumon_core::profile::IDLE_CONTEXT;
    use proptest::prelude::*;

    use super::*;

    fn row(model: &str, mhz: i32, gpu: &str, watts: f64) -> ProfileRow {
        let mut row = ProfileRow::new(model, i32::from(!model.starts_with('@')), 1.0, mhz);
        (row.gpu_uuid, row.avg_power_draw) = (Some(gpu.into()), Some(watts));
        row
    }

    fn file(name: &str, rows: &[ProfileRow]) -> (String, Vec<ProfileRow>) {
        (name.into(), rows.to_vec())
    }

    #[test]
    fn idle_rows_of_both_gpus_stay_and_the_gpus_are_told() {
        let a = file("a", &[row(IDLE_CONTEXT, 210, "GPU-1", 60.0), row("m", 210, "GPU-1", 90.0)]);
        let b = file("b", &[row(IDLE_CONTEXT, 210, "GPU-2", 62.0), row("m", 240, "GPU-2", 95.0)]);
        let merged = merge(&[a, b]).unwrap();
        assert_eq!((merged.rows.len(), merged.repeated), (4, 0));
        assert!(merged.rows[..2].iter().all(ProfileRow::is_idle));
        assert!(merged.notices[0].contains("2 GPUs (GPU-1, GPU-2)"), "{:?}", merged.notices);
    }

    #[test]
    fn parts_on_one_gpu_keep_the_lower_idle_power() {
        let (low, high) = (row(IDLE_CONTEXT, 210, "GPU-1", 60.0), row(IDLE_CONTEXT, 210, "GPU-1", 61.0));
        let (a, b) = (file("a", std::slice::from_ref(&low)), file("b", &[high]));
        assert_eq!(merge(&[b, a]).unwrap().rows, [low]);
    }

    #[test]
    fn contradictions_kinds_and_simulated_rows_are_refused() {
        let refuse = |a: &ProfileRow, b: &ProfileRow| {
            merge(&[file("a", std::slice::from_ref(a)), file("b", std::slice::from_ref(b))])
                .unwrap_err()
                .to_string()
        };
        let one = row("m", 210, "GPU-1", 90.0);
        let text = refuse(&one, &row("m", 210, "GPU-1", 91.0));
        assert!(text.contains("`a` and `b`") && text.contains("share 1.000, 210 MHz"), "{text}");
        let kind = |name: &str| ProfileRow { gpu_name: Some(name.into()), ..row("m", 210, name, 90.0) };
        assert!(refuse(&kind("A100"), &kind("H200")).contains("several kinds of GPU (A100, H200)"));
        let simulated = |s| ProfileRow { simulated: Some(s), ..one.clone() };
        assert!(refuse(&simulated(true), &simulated(false)).contains("simulated"));
    }

    #[test]
    fn a_measured_point_takes_the_place_of_a_failed_one() {
        let measured = row("m", 210, "GPU-1", 90.0);
        let failed = ProfileRow {
            valid: false,
            reason: Some("failed".into()),
            avg_power_draw: None,
            ..measured.clone()
        };
        for files in [[&failed, &measured], [&measured, &failed]] {
            let files = files.map(|r| file("x", std::slice::from_ref(r)));
            assert_eq!(merge(&files).unwrap().rows, std::slice::from_ref(&measured));
        }
    }

    proptest! {
        #[test]
        fn order_and_repetition_change_nothing(
            picks in proptest::collection::vec((0usize..2, 0i32..6, 0usize..2, any::<bool>()), 0..40), cut in 0usize..40,
        ) {
            let rows: Vec<ProfileRow> = picks
                .iter()
                .map(|&(model, clock, gpu, valid)| {
                    let name = ["a", "b"][model];
                    let watts = 50.0 + f64::from(clock);
                    let row = row(name, 210 + 15 * clock, ["GPU-1", "GPU-2"][gpu], watts);
                    ProfileRow { valid, reason: (!valid).then(|| "failed".into()), ..row }
                })
                .collect();
            let cut = cut.min(rows.len());
            let (a, b) = (file("a", &rows[..cut]), file("b", &rows[cut..]));
            let merged = merge(&[a.clone(), b.clone()]).unwrap().rows;
            prop_assert_eq!(&merge(&[b.clone(), a]).unwrap().rows, &merged);
            prop_assert_eq!(&merge(&[file("all", &merged), b]).unwrap().rows, &merged);
        }
    }
}
