//! What every profile goes through, whatever file it came from.
//!
//! Rule: a value out of its range is an error, and so are slices and a share that contradict each other; rows with the
//! same key on the same GPU become their mean; a model whose dynamic power is always its average power loses its
//! dynamic power, and so do single rows whose dynamic power is not below average power.
//! Cases: among rows that repeat a point the invalid ones count only if there are no others; sums stay sums
//! (`n_samples`), memory is the largest.
//! Not done here: judging times and throughputs against each other; that is the fit's.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::geometry::SEVEN_SLICES;
use crate::profile::ProfileRow;
use crate::units::plain;

/// A value out of its range: column, what stands there, what should.
pub(super) struct Wrong {
    pub(super) column: &'static str,
    pub(super) found: String,
    pub(super) expected: &'static str,
}

/// No GPU draws more, W.
const MAX_W: f64 = 10_000.0;
/// How far `share` and `mig_slices` / 7 may differ by rounding.
const SHARE_ROUNDING: f64 = 0.01;

const NOT_NEGATIVE: &str = "a finite number, 0 or above";
const POSITIVE: &str = "a finite number above 0";

/// Checks one row.
pub(super) fn check(row: &ProfileRow) -> Result<(), Wrong> {
    let wrong = |column, found: &dyn std::fmt::Display, expected| {
        Err(Wrong { column, found: format!("`{found}`"), expected })
    };
    let absent = |column, expected| Err(Wrong { column, found: "nothing".into(), expected });
    if row.model.is_empty() {
        return absent("model", "a name");
    }
    if row.batch_size < i32::from(!row.is_idle()) {
        return wrong("batch_size", &row.batch_size, "a whole number, 1 or above");
    }
    if !(row.share > 0.0 && row.share <= 1.0) {
        return wrong("share", &plain(row.share), "a number above 0, up to 1");
    }
    let legal = |slices: i32| u8::try_from(slices).is_ok_and(|s| SEVEN_SLICES.profile(s).is_some());
    if let Some(slices) = row.mig_slices.filter(|&s| !legal(s)) {
        return wrong("mig_slices", &slices, "1, 2, 3, 4 or 7");
    }
    if let Some(processes) = row.processes.filter(|p| *p < 1) {
        return wrong("processes", &processes, "a whole number, 1 or above");
    }
    if row.frequency < 1 {
        return wrong("frequency", &row.frequency, "a clock in MHz, 1 or above");
    }
    if let Some(slices) = row.mig_slices {
        let of_slices = f64::from(slices) / f64::from(SEVEN_SLICES.compute_slices);
        if (row.share - of_slices).abs() > SHARE_ROUNDING {
            let found = format!("`{}` beside {slices} of 7 slices, which is {of_slices:.4}", row.share);
            let expected = "the share that `mig_slices` is, or only one of the two";
            return Err(Wrong { column: "share", found, expected });
        }
    }
    let watts = [("avg_power_draw", row.avg_power_draw), ("dynamic_power_draw", row.dynamic_power_draw)];
    for (column, value) in watts {
        if let Some(value) = value.filter(|v| *v > MAX_W) {
            return wrong(column, &plain(value), "a power in W, up to 10000");
        }
    }
    if row.avg_power_draw == Some(0.0) {
        return wrong("avg_power_draw", &0, "a power in W, above 0; an empty cell if it was not measured");
    }
    for (column, value) in not_negative(row) {
        if let Some(value) = value.filter(|v| !(v.is_finite() && *v >= 0.0)) {
            return wrong(column, &plain(value), NOT_NEGATIVE);
        }
    }
    for (column, value) in [("mem_bytes", row.mem_bytes), ("n_samples", row.n_samples)] {
        if let Some(value) = value.filter(|v| *v < 0) {
            return wrong(column, &value, "a whole number, 0 or above");
        }
    }
    for (column, value) in positive(row) {
        if let Some(value) = value.filter(|v| !(v.is_finite() && *v > 0.0)) {
            return wrong(column, &plain(value), POSITIVE);
        }
    }
    if row.valid && row.is_idle() && row.avg_power_draw.is_none() {
        return absent("avg_power_draw", "a power in W, as the row is valid");
    }
    if row.valid && !row.is_idle() {
        for (column, value) in [("throughput", row.throughput), ("latency", row.latency)] {
            if value.is_none() {
                return absent(column, "a number above 0, as the row is valid");
            }
        }
    }
    Ok(())
}

fn not_negative(row: &ProfileRow) -> [(&'static str, Option<f64>); 12] {
    [
        ("sm_mhz_achieved", row.sm_mhz_achieved),
        ("avg_power_draw", row.avg_power_draw),
        ("dynamic_power_draw", row.dynamic_power_draw),
        ("energy_per_item", row.energy_per_item),
        ("sm_util_pct", row.sm_util_pct),
        ("sm_occupancy_pct", row.sm_occupancy_pct),
        ("tensor_util_pct", row.tensor_util_pct),
        ("dram_util_pct", row.dram_util_pct),
        ("power_ci95", row.power_ci95),
        ("latency_ci95", row.latency_ci95),
        ("wall_s", row.wall_s),
        ("wall_energy_j", row.wall_energy_j),
    ]
}

fn positive(row: &ProfileRow) -> [(&'static str, Option<f64>); 6] {
    [
        ("throughput", row.throughput),
        ("latency", row.latency),
        ("latency_p50", row.latency_p50),
        ("latency_p95", row.latency_p95),
        ("latency_p99", row.latency_p99),
        ("power_limit_w", row.power_limit_w.map(f64::from)),
    ]
}

/// Averages rows that repeat a point, and leaves out dynamic power that is none. `name` begins the notices.
pub(super) fn clean(rows: Vec<ProfileRow>, name: &str, notices: &mut Vec<String>) -> Vec<ProfileRow> {
    let mut rows = average_repeats(rows, name, notices);
    let suspects = without_idle_taken_off(&rows);
    for model in &suspects {
        notices.push(format!(
            "{name}: `{model}`'s dynamic power is its average power in every row, so idle power was never taken off; \
             its dynamic power is left out"
        ));
    }
    for row in rows.iter_mut().filter(|r| suspects.contains(&r.model)) {
        row.dynamic_power_draw = None;
    }
    leave_out_impossible(&mut rows, name, notices);
    rows
}

/// Leaves out dynamic power that is not below average power.
fn leave_out_impossible(rows: &mut [ProfileRow], name: &str, notices: &mut Vec<String>) {
    let mut models: BTreeMap<String, (usize, String)> = BTreeMap::new();
    for row in rows.iter_mut().filter(|r| !r.is_idle()) {
        let (Some(average), Some(dynamic)) = (row.avg_power_draw, row.dynamic_power_draw) else { continue };
        if dynamic >= average {
            row.dynamic_power_draw = None;
            let first =
                || format!("{dynamic} of {average} W at batch {}, {} MHz", row.batch_size, row.frequency);
            models.entry(row.model.clone()).or_insert_with(|| (0, first())).0 += 1;
        }
    }
    for (model, (count, first)) in models {
        notices.push(format!(
            "{name}: `{model}`'s dynamic power is not below its average power in {count} row{} ({}{first}); it is left \
             out there, because dynamic power is what lies above the idle GPU",
            if count == 1 { "" } else { "s" },
            if count == 1 { "" } else { "the first: " },
        ));
    }
}

fn without_idle_taken_off(rows: &[ProfileRow]) -> BTreeSet<String> {
    let mut suspects = BTreeSet::new();
    let mut cleared = BTreeSet::new();
    for row in rows.iter().filter(|r| !r.is_idle()) {
        match (row.avg_power_draw, row.dynamic_power_draw) {
            (Some(average), Some(dynamic)) if average == dynamic => suspects.insert(row.model.clone()),
            (_, Some(_)) => cleared.insert(row.model.clone()),
            _ => false,
        };
    }
    &suspects - &cleared
}

fn average_repeats(rows: Vec<ProfileRow>, name: &str, notices: &mut Vec<String>) -> Vec<ProfileRow> {
    let before = rows.len();
    let mut place = HashMap::new();
    let mut groups: Vec<Vec<ProfileRow>> = Vec::new();
    for row in rows {
        let key = (row.key(), row.gpu_uuid.clone(), row.gpu_name.clone(), row.share_kind.clone());
        let at = *place.entry(key).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let repeated = groups.iter().filter(|g| g.len() > 1).count();
    if repeated > 0 {
        notices.push(format!(
            "{name}: points that stand in more than one row: {repeated} ({} rows too many); each is now the mean of its rows",
            before - groups.len()
        ));
    }
    groups.into_iter().filter_map(mean).collect()
}

/// The mean of rows of one point; `None` of none.
fn mean(mut group: Vec<ProfileRow>) -> Option<ProfileRow> {
    if group.iter().any(|r| r.valid) {
        group.retain(|r| r.valid);
    }
    let mut row = group.first()?.clone();
    if group.len() == 1 {
        return Some(row);
    }
    macro_rules! mean_of {
        ($($column:ident),*) => { $( row.$column = mean_known(group.iter().map(|r| r.$column)); )* };
    }
    mean_of!(
        sm_mhz_achieved,
        avg_power_draw,
        dynamic_power_draw,
        throughput,
        latency,
        latency_p50,
        latency_p95,
        latency_p99
    );
    // Of several measurements the mean is known better than of one; how much better the rows do not say.
    mean_of!(power_ci95, latency_ci95, temp_c);
    mean_of!(energy_per_item, sm_util_pct, sm_occupancy_pct, tensor_util_pct, dram_util_pct);
    row.wall_s = sum_known(group.iter().map(|r| r.wall_s));
    row.wall_energy_j = sum_known(group.iter().map(|r| r.wall_energy_j));
    row.mem_bytes = group.iter().filter_map(|r| r.mem_bytes).max();
    row.n_samples = group.iter().filter_map(|r| r.n_samples).reduce(|sum, n| sum.saturating_add(n));
    Some(row)
}

fn sum_known(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().reduce(|sum, v| sum + v)
}

fn mean_known(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let known: Vec<f64> = values.flatten().collect();
    let count = known.len() as f64;
    (!known.is_empty()).then(|| known.iter().map(|v| v / count).sum())
}
