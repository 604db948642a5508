//! docs/faults.md names every row, and for each the test that is here, or says that it is missing.

use std::collections::BTreeSet;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/faults.md");
const SOURCES: &[&str] = &[
    include_str!("control.rs"),
    include_str!("exporter.rs"),
    include_str!("gone.rs"),
    include_str!("process.rs"),
    include_str!("readings.rs"),
    include_str!("start.rs"),
    include_str!("timing.rs"),
];

/// The names of the tests of all rows.
fn tests() -> BTreeSet<&'static str> {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    lines.filter_map(|line| line.strip_prefix("fn row_")?.split_once('(')).map(|(name, _)| name).collect()
}

#[test]
fn the_table_names_every_row_and_every_test() {
    let text = std::fs::read_to_string(TABLE).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("| ") && line[2..].starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    assert_eq!(rows.len(), 30, "thirty rows");
    let mut named = BTreeSet::new();
    for (number, row) in (1..).zip(&rows) {
        let [id, _, _, test, mutation, state] = row[..] else { panic!("six columns: {row:?}") };
        assert_eq!(id, number.to_string(), "in order");
        match state {
            "missing" => assert_eq!((test, mutation), ("–", "–"), "{row:?}"),
            "done" | "partly" => {
                assert!(
                    !mutation.is_empty() && mutation != "–",
                    "a test counts once its mutation failed: {row:?}"
                );
                for name in test.split(", ") {
                    let name = name.trim_matches('`');
                    assert!(name.starts_with(&format!("row_{number:02}_")), "{name}");
                    named.insert(name.trim_start_matches("row_").to_owned());
                }
            }
            other => panic!("`{other}` is no state: {row:?}"),
        }
    }
    let there: BTreeSet<String> = tests().into_iter().map(str::to_owned).collect();
    assert_eq!(named, there, "the table and the tests name each other");
}
