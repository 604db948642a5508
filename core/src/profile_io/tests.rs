use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::dev::reference;
use crate::profile::{IDLE, IDLE_CONTEXT};

const HEADER: &str =
    "model,batch_size,mig_slices,frequency,avg_power_draw,dynamic_power_draw,throughput,latency\n";

fn parse(text: &str) -> Result<Profile, ProfileError> {
    parse_csv(text, Path::new("p.csv"))
}

fn error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_published_row_reads() {
    let profile = parse(&format!("{HEADER}vgg11,1.0,2.0,210,49.5,5.8,47.4,21.2\n")).unwrap();
    let row = &profile.rows[0];
    assert_eq!((row.batch_size, row.mig_slices, row.frequency, row.share), (1, Some(2), 210, 2.0 / 7.0));
    assert_eq!((row.share_kind.as_deref(), row.valid, row.simulated), (Some("mig"), true, None));
    assert_eq!(profile.notices, Vec::<String>::new());
}

#[test]
fn byte_order_marks_carriage_returns_and_spaces_do_no_harm() {
    let text = format!("\u{feff}{}m, 1, 2, 210, 50, 5, 4, 3\r\n\r\n", HEADER.replace('\n', "\r\n"));
    assert_eq!(parse(&text).unwrap().rows.len(), 1);
}

#[test]
fn columns_may_stand_in_any_order_and_a_share_may_replace_slices() {
    let text = "latency,model,share,batch_size,frequency,throughput,dynamic_power_draw,avg_power_draw,note\n\
                3,m,0.25,1,210,4,5,50,hello\n";
    let profile = parse(text).unwrap();
    assert_eq!((profile.rows[0].share, profile.rows[0].mig_slices), (0.25, None));
    assert!(profile.notices[0].contains("`note`"), "{:?}", profile.notices);
}

#[test]
fn errors_name_line_and_column() {
    for (row, says) in [
        ("m,1,2,210,50,5,4,-3", "line 3, column `latency`: found `-3`"),
        ("m,1,2,210,50,5,,3", "line 3, column `throughput`: found nothing"),
        ("m,1,2,210,nan,5,4,3", "column `avg_power_draw`: found `nan`, expected a finite number"),
        ("m,1,2,210,50,-5,4,3", "column `dynamic_power_draw`"),
        ("m,1,2,210,50,inf,4,3", "column `dynamic_power_draw`"),
        ("m,1.5,2,210,50,5,4,3", "column `batch_size`: found `1.5`, expected a whole number"),
        ("m,0,2,210,50,5,4,3", "column `batch_size`"),
        ("m,1,5,210,50,5,4,3", "column `mig_slices`: found `5`, expected 1, 2, 3, 4 or 7"),
        ("m,1,-2,210,50,5,4,3", "column `mig_slices`: found `-2`"),
        ("m,1,900,210,50,5,4,3", "column `mig_slices`: found `900`"),
        ("m,1,,210,50,5,4,3", "column `mig_slices`"),
        ("m,1,2,99999999999,50,5,4,3", "column `frequency`"),
        (",1,2,210,50,5,4,3", "column `model`"),
        ("m,1,2,210,50,5,4", "line 3: 7 values, but the header names 8"),
        ("m,1,2,210,50,5,4,3,2", "line 3: 9 values"),
        ("m,1,2,210,fifty,5,4,3", "found `fifty`"),
    ] {
        let text = error(&format!("{HEADER}m,1,1,210,50,5,4,3\n{row}\n"));
        assert!(text.starts_with("`p.csv`, line 3") && text.contains(says), "{row}: {text}");
    }
    let text = error(&format!("{HEADER}\n\nm,1,1,210,50,5,4,x\n"));
    assert!(text.contains("line 4"), "empty lines count: {text}");
}

#[test]
fn empty_files_and_wrong_headers_are_explained() {
    assert!(error("").contains("empty; expected CSV with a header"));
    assert!(error(" \n\n").contains("empty"));
    assert!(error(HEADER).contains("header without rows"));
    let text = error(&HEADER.replace("latency", "latncy"));
    assert!(text.contains("lacks `latency`") && text.contains("`latncy`"), "{text}");
    assert!(error("hello world\n").contains("the header lacks"));
    assert!(error(&HEADER.replace("latency", "model")).contains("two columns are called `model`"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.bin");
    std::fs::write(&path, b"a\nb\xff\xfe").unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("line 2: neither UTF-8"));
    std::fs::write(&path, b"PAR1 and nothing more").unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("not readable as Parquet"));
    assert!(read(&folder.path().join("none.csv")).unwrap_err().to_string().starts_with("cannot read"));
    assert!(write(&path, &[]).unwrap_err().to_string().contains("`.parquet` or `.csv`"));
}

#[test]
fn a_saved_data_frame_is_a_profile() {
    use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
    let save = |latency: Option<f64>, path: &Path| {
        let ints = |v: i64| std::sync::Arc::new(Int64Array::from(vec![v, v + 15])) as ArrayRef;
        let floats = |v: f64| std::sync::Arc::new(Float64Array::from(vec![v, v / 3.0])) as ArrayRef;
        let latency = Float64Array::from(vec![Some(1.5), latency]);
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("model", std::sync::Arc::new(StringArray::from(vec!["a, b", "c"])) as ArrayRef, true),
            ("batch_size", ints(4), true),
            ("mig_slices", floats(3.0), true),
            ("frequency", ints(210), true),
            ("avg_power_draw", floats(50.0), true),
            ("dynamic_power_draw", floats(7.0), true),
            ("throughput", floats(9.0), true),
            ("latency", std::sync::Arc::new(latency), true),
        ])
        .unwrap();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frame.parquet");
    save(Some(2.5), &path);
    let rows = read(&path).unwrap().rows;
    assert_eq!((rows[0].model.as_str(), rows[0].mig_slices, rows[1].frequency), ("a, b", Some(3), 225));
    assert_eq!((rows[1].dynamic_power_draw, rows[1].latency), (Some(7.0 / 3.0), Some(2.5)));
    save(None, &path);
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("line 3, column `latency`: found nothing"), "{error}");
}

#[test]
fn many_unknown_columns_are_named_in_part() {
    let names: Vec<String> = (0..500).map(|i| format!("x{i}")).collect();
    let text = format!("{},{}\nm,1,2,210,50,5,4,3{}\n", HEADER.trim(), names.join(","), ",1".repeat(500));
    let notices = parse(&text).unwrap().notices;
    assert!(notices[0].ends_with("and 492 more") && notices[0].len() < 200, "{notices:?}");
}

#[test]
fn repeated_points_are_averaged_with_a_notice() {
    let profile =
        parse(&format!("{HEADER}m,1,2,210,50,5,4,3\nm,1,2,240,50,5,4,3\nm,1,2.0,210,60,7,6,5\n")).unwrap();
    assert_eq!(profile.rows.len(), 2);
    let row = &profile.rows[0];
    assert_eq!((row.avg_power_draw, row.dynamic_power_draw), (Some(55.0), Some(6.0)));
    assert_eq!((row.throughput, row.latency), (Some(5.0), Some(4.0)));
    assert!(profile.notices[0].contains("in more than one row: 1 (1 rows"), "{:?}", profile.notices);
}

#[test]
fn dynamic_power_that_is_average_power_is_left_out() {
    let both = format!(
        "{HEADER}m,1,2,210,50,50,4,3\nm,1,2,240,51,51,4,3\nn,1,2,210,50,50,4,3\nn,1,2,240,50,9,4,3\n"
    );
    let profile = parse(&both).unwrap();
    let dynamic: Vec<_> = profile.rows.iter().map(|r| r.dynamic_power_draw).collect();
    assert_eq!(dynamic, [None, None, None, Some(9.0)]);
    assert!(profile.notices[0].contains("`m`'s dynamic power is its average"), "{:?}", profile.notices);
    assert!(profile.notices[1].contains("`n`'s dynamic power is not below"), "{:?}", profile.notices);
    assert!(
        profile.notices[1].contains("in 1 row (50 of 50 W at batch 1, 210 MHz)"),
        "{:?}",
        profile.notices
    );
}

#[test]
fn parva_rows_become_points_of_all_their_processes() {
    let text =
        "Mig instance,Batch size,Workload Number,Throughput,Latency\r\n1,2,3,50.5,0.058\r\n1,256,5,0,0\r\n";
    let profile = parse_csv(text, Path::new("dir/bert.csv")).unwrap();
    let [fits, does_not] = &profile.rows[..] else { panic!("{profile:?}") };
    assert_eq!((fits.model.as_str(), fits.processes, fits.mig_slices), ("bert", Some(3), Some(1)));
    assert_eq!((fits.throughput, fits.latency, fits.frequency), (Some(151.5), Some(58.0), 1410));
    assert!(fits.valid && !does_not.valid && does_not.latency.is_none());
    assert!(profile.notices[0].contains("name no clock"));
    let bad = parse_csv(&text.replace("0.058", "-1"), Path::new("bert.csv")).unwrap_err().to_string();
    assert!(bad.contains("line 2, column `Latency`"), "{bad}");
    let bad = parse_csv(&text.replace("\n1,2,", "\n6,2,"), Path::new("bert.csv")).unwrap_err().to_string();
    assert!(bad.contains("line 2, column `Mig instance`"), "{bad}");
}

#[test]
fn the_published_profiles_read_with_their_quirks() {
    let Some(folder) = reference("a100/profiles").unwrap() else { return };
    let names = [
        "densenet161",
        "densenet169",
        "diffusion_1024_1024",
        "diffusion_256_256",
        "gpt",
        "mobilenet_v3_large",
    ];
    let more = ["resnet152", "resnet50", "vgg11", "vgg19", "whisper"];
    let expected = [418, 449, 36, 360, 36, 375, 450, 300, 450, 300, 300];
    for (name, count) in names.into_iter().chain(more).zip(expected) {
        let profile = read(&folder.join(format!("{name}-perf-power-profile.csv"))).unwrap();
        assert_eq!(profile.rows.len(), count, "{name}");
        assert!(profile.rows.iter().all(|r| r.model == name && r.valid));
        let quirky = name == "diffusion_256_256";
        assert_eq!(profile.notices.len(), if quirky { 2 } else { 0 }, "{:?}", profile.notices);
        assert!(profile.rows.iter().all(|r| r.dynamic_power_draw.is_none() == quirky));
        let least = |slices| profile.rows.iter().any(|r| r.mig_slices == Some(slices));
        let smallest_batch = profile.rows.iter().map(|r| r.batch_size).min();
        match name {
            "resnet50" | "vgg19" | "whisper" => assert!(!least(1) && smallest_batch == Some(2)),
            "mobilenet_v3_large" => assert_eq!(smallest_batch, Some(2)),
            "gpt" | "diffusion_1024_1024" => assert!(profile.rows.iter().all(|r| r.frequency >= 690)),
            _ => {}
        }
    }
}

#[test]
fn the_published_datastore_reads() {
    let Some(path) = reference("a100/model_datastore.csv").unwrap() else { return };
    let profile = read(&path).unwrap();
    assert_eq!((profile.rows.len(), profile.notices.len()), (3150, 0));
    assert!(profile.rows.iter().all(|r| r.dynamic_power_draw.is_some()));
}

#[test]
fn the_published_segments_read() {
    let Some(folder) = reference("parvagpu/profiles").unwrap() else { return };
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let profile = read(&entry.unwrap().path()).unwrap();
        assert_eq!((profile.rows.len(), profile.notices.len()), (225, 1));
        files += 1;
    }
    assert_eq!(files, 11);
}

prop_compose! {
    fn figures()(v in proptest::collection::vec(proptest::option::of(1e-6f64..1e9), 10), n in 0i64..i64::MAX) -> (Vec<Option<f64>>, i64) { (v, n) }
}

prop_compose! {
    fn row(i: i32)(
        (v, n) in figures(), valid in any::<bool>(), kind in 0u8..4, batch in 1i32..512,
        name in "[a-zA-Z][a-z \"',;\n]{0,8}[a-z]", reason in proptest::option::of("[^\0\r]{1,12}"), share in 1e-3f64..1.0,
        sim in proptest::option::of(any::<bool>()), slices in proptest::option::of(1i32..4),
    ) -> ProfileRow {
        let mut row = ProfileRow::new(&name, batch, share, 210 + i);
        match kind {
            0 => { row.model = IDLE.into(); row.batch_size = 0; }
            1 => { row.model = IDLE_CONTEXT.into(); row.batch_size = 0; }
            _ => {}
        }
        row.gpu_name = v[0].map(|x| format!(" GPU {x}"));
        row.simulated = sim;
        row.mig_slices = slices;
        row.share_kind = slices.map(|_| "mig".into());
        row.share = slices.map_or(share, |n| f64::from(n) / 7.0);
        let average = v[1].map_or(1.0, |x| x.min(10_000.0));
        row.avg_power_draw = Some(average);
        row.dynamic_power_draw = v[2].map(|x| x.min(average / 2.0));
        row.throughput = v[3].or(Some(2.0));
        row.latency = v[4].or(Some(3.0));
        row.latency_p99 = v[5];
        row.latency_p95 = v[5];
        row.latency_ci95 = v[6];
        row.power_ci95 = v[7];
        row.clock_locked = sim;
        row.power_limit_w = slices.map(|n| 100 * n);
        row.temp_c = v[8];
        row.wall_s = v[9];
        row.wall_energy_j = v[1];
        row.energy_per_item = v[6];
        row.dram_util_pct = v[7];
        row.mem_bytes = v[8].map(|_| n);
        row.n_samples = v[9].map(|x| x as i64);
        row.valid = valid;
        row.reason = reason;
        row
    }
}

fn rows() -> impl Strategy<Value = Vec<ProfileRow>> {
    (1usize..20).prop_flat_map(|n| (0..n as i32).map(row).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_written_reads_back(rows in rows(), name in "p\\.(parquet|csv|PARQUET|Csv)") {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        write(&path, &rows).unwrap();
        let profile = read(&path).unwrap();
        prop_assert_eq!(profile.rows, rows);
        prop_assert!(profile.notices.is_empty());
        prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}

fn some_parquet() -> Vec<u8> {
    let rows: Vec<_> = (0..40)
        .map(|i| ProfileRow {
            avg_power_draw: Some(50.0 + f64::from(i)),
            throughput: Some(4.0),
            latency: Some(3.0),
            gpu_name: Some(format!("GPU {i}")),
            ..ProfileRow::new("model", 1 + i, 0.5, 210)
        })
        .collect();
    parquet_file::bytes(&rows, Path::new("p.parquet")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_parquet_is_an_error_and_never_a_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        late in any::<bool>(),
    ) {
        let mut bytes = some_parquet();
        let from = if late { bytes.len() / 2 } else { 4 };
        for (at, value) in flips {
            let at = from + at.index(bytes.len() - from);
            bytes[at] = value;
        }
        // Damage that no checksum sees may pass.
        if let Err(error) = parquet_file::read(bytes, Path::new("p.parquet")) {
            prop_assert!(error.to_string().starts_with("`p.parquet`"), "{}", error);
        }
    }
}

#[test]
fn rows_that_contradict_themselves_are_refused() {
    for (row, says) in [
        (
            "m,1,2,210,50000,5,4,3",
            "column `avg_power_draw`: found `50000`, expected a power in W, up to 10000",
        ),
        ("m,1,2,210,0,0,4,3", "column `avg_power_draw`: found `0`, expected a power in W, above 0"),
        ("m,1,2,210,50,20000,4,3", "column `dynamic_power_draw`"),
    ] {
        let text = error(&format!("{HEADER}{row}\n"));
        assert!(text.contains(says) && text.contains("line 2"), "{text}");
    }
    let both =
        "model,batch_size,mig_slices,share,frequency,avg_power_draw,dynamic_power_draw,throughput,latency\n";
    assert!(parse(&format!("{both}m,1,2,0.2857,210,50,5,4,3\n")).is_ok());
    let text = error(&format!("{both}m,1,2,0.9,210,50,5,4,3\n"));
    assert!(text.contains("column `share`: found `0.9` beside 2 of 7 slices"), "{text}");
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        let _ = parse(&text);
        let _ = parse(&format!("{HEADER}{text}"));
    }

    #[test]
    fn no_row_of_odd_cells_panics(cells in proptest::collection::vec("[-+0-9.eE\"naif ]{0,12}", 6..10)) {
        let _ = parse(&format!("{HEADER}{}\n", cells.join(",")));
        let _ = parse(&format!("Mig instance,Batch size,Workload Number,Throughput,Latency\n{}\n", cells[..5].join(",")));
    }
}
