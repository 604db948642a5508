//! What the exporter shows of GPUs that lack sensors, go, or never answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use gpumon_fakenvml::testing::Fake;

use super::helpers::*;
use super::{ends, until};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0";

/// A running exporter; killed with the test.
struct Exporter {
    child: Option<Child>,
    address: String,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Exporter {
    #[track_caller]
    fn start(fake: &Fake) -> Self {
        let args = ["exporter", "--listen", "127.0.0.1:0", "--interval", "200ms"];
        let mut child = command(fake, &args).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ended before it listened");
        }
        // What it says later must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let address = line.trim().rsplit_once("http://").unwrap().1.trim_end_matches("/metrics").to_owned();
        Self { child: Some(child), address }
    }

    /// Status and headers, and the body.
    fn get(&self, path: &str, accept: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let host = &self.address;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), body.to_owned())
    }

    #[track_caller]
    fn scrape(&self) -> Scrape {
        let (head, body) = self.get("/metrics", "text/plain");
        assert!(head.starts_with("http/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
        Scrape::parse(&body)
    }
}

/// Series by name and labels.
#[derive(Debug, PartialEq)]
struct Scrape(BTreeMap<(String, BTreeMap<String, String>), f64>);

impl Scrape {
    /// A strict reader: every line is a comment or a sample of a family with HELP and TYPE, families are not torn apart,
    /// no label and no series is there twice, no series has more than six labels.
    #[track_caller]
    fn parse(body: &str) -> Self {
        let mut series = BTreeMap::new();
        let (mut typed, mut helped) = (BTreeSet::new(), BTreeSet::new());
        let mut family = String::new();
        for line in body.lines().filter(|l| *l != "# EOF" && !l.starts_with("# UNIT ")) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                assert!(helped.insert(rest.split(' ').next().unwrap().to_owned()), "twice: {line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["gauge", "counter", "info"].contains(&kind), "{line}");
                assert!(typed.insert(name.to_owned()) && helped.contains(name), "{line}");
                family = name.to_owned();
            } else {
                let (key, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
                assert!(["", "_total", "_info"].contains(&name.strip_prefix(&family[..]).unwrap()), "{line}");
                let labels = Self::labels(labels.strip_suffix('}').unwrap());
                assert!(labels.len() <= 6, "{line}");
                let of_gpu = name.starts_with("gpumon_") && name != "gpumon_build_info";
                assert_eq!(labels.contains_key("uuid"), of_gpu, "{line}");
                let value: f64 = value.parse().unwrap();
                assert!(value.is_finite(), "{line}");
                assert!(series.insert((name.to_owned(), labels), value).is_none(), "twice: {line}");
            }
        }
        Self(series)
    }

    #[track_caller]
    fn labels(mut text: &str) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        while !text.is_empty() {
            let (name, rest) = text.split_once("=\"").unwrap();
            let (value, rest) = rest.split_once('"').unwrap();
            assert!(!value.contains('\\'), "no name here needs escapes: {value}");
            assert!(labels.insert(name.to_owned(), value.to_owned()).is_none(), "{name} twice");
            text = rest.strip_prefix(',').unwrap_or(rest);
        }
        labels
    }

    /// The values of a metric of a GPU.
    fn values(&self, name: &str, uuid: &str) -> Vec<f64> {
        let of = |((n, labels), _): &(&(String, BTreeMap<String, String>), &f64)| {
            n == name && labels.get("uuid").is_some_and(|u| u == uuid)
        };
        self.0.iter().filter(of).map(|(_, value)| *value).collect()
    }

    fn names(&self, uuid: &str) -> BTreeSet<&str> {
        let of = self.0.keys().filter(|(_, labels)| labels.get("uuid").is_some_and(|u| u == uuid));
        of.map(|(name, _)| name.as_str()).collect()
    }
}

fn uuids(fake: &Fake) -> Vec<String> {
    fake.truth().unwrap().gpus.iter().map(|gpu| gpu.uuid().to_string()).collect()
}

/// What stays of a GPU that does not answer.
const REST: [&str; 5] = [
    "gpumon_fast_readings_total",
    "gpumon_gpu_info",
    "gpumon_losses_total",
    "gpumon_ring_readings_total",
    "gpumon_up",
];

#[test]
fn row_29_absent_is_absent_and_labels_are_few() {
    let no = |call: &str| {
        format!("[[fault]]\nkind = \"error\"\ncall = \"{call}\"\ngpu = 0\nerror = \"NOT_SUPPORTED\"\n")
    };
    let script = no("nvmlDeviceGetUtilizationRates") + &no("nvmlDeviceGetTotalEnergyConsumption");
    let fake = fake(&format!("{TWO}{script}"));
    let mut exporter = Exporter::start(&fake);
    let uuids = uuids(&fake);
    until(20, "both GPUs are up", || {
        let scrape = exporter.scrape();
        uuids.iter().all(|uuid| scrape.values("gpumon_up", uuid) == [1.0])
            && !scrape.values("gpumon_energy_joules_total", &uuids[1]).is_empty()
            && uuids.iter().all(|uuid| !scrape.values("gpumon_temperature_celsius", uuid).is_empty())
    });
    let scrape = exporter.scrape();
    for name in ["gpumon_utilization_ratio", "gpumon_memory_utilization_ratio", "gpumon_energy_joules_total"]
    {
        assert!(scrape.values(name, &uuids[0]).is_empty(), "{name} is absent, not 0");
        assert_eq!(scrape.values(name, &uuids[1]).len(), 1, "{name}");
    }
    for uuid in &uuids {
        let watts = scrape.values("gpumon_power_watts", uuid);
        assert!(watts.len() == 1 && (50.0..800.0).contains(&watts[0]), "{watts:?}");
        let hertz = scrape.values("gpumon_sm_clock_hertz", uuid);
        assert!((1e8..3e9).contains(&hertz[0]), "{hertz:?}");
        assert_eq!(scrape.values("gpumon_gpu_info", uuid), [1.0]);
    }
    // The same in the other format, with its own end.
    let (head, body) = exporter.get("/metrics", &format!("{OPEN_METRICS};q=0.9,text/plain;q=0.1"));
    assert!(head.contains(OPEN_METRICS), "{head}");
    assert!(body.ends_with("# EOF\n") && body.contains("# TYPE gpumon_energy_joules counter\n"), "{body}");
    let names = |scrape: &Scrape| uuids.iter().map(|u| scrape.names(u).len()).collect::<Vec<_>>();
    assert_eq!(names(&Scrape::parse(&body)), names(&scrape));
    // Scrapes read no sensor.
    let calls = || fake.calls("nvmlDeviceGetUtilizationRates", Some(1)).unwrap();
    let before = calls();
    for _ in 0..100 {
        exporter.scrape();
    }
    assert!(calls() - before < 100, "{} calls in 100 scrapes", calls() - before);
    assert!(exporter.get("/healthz", "*/*").1.contains("ok"));
    assert!(exporter.get("/nothing", "*/*").0.starts_with("http/1.1 404"));
    // An address that is taken is said, and a signal ends it, also while a client holds a connection.
    let taken = command(&fake, &["exporter", "--listen", &exporter.address]).output().unwrap();
    assert_eq!(taken.status.code(), Some(1));
    assert!(text(&taken.stderr).contains("cannot listen"), "{}", text(&taken.stderr));
    let _held = TcpStream::connect(&exporter.address).unwrap();
    let child = exporter.child.take().unwrap();
    signal(&child, "-TERM");
    let (output, took) = ends(10, child);
    assert_eq!(output.status.code(), Some(0));
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn row_29_a_gpu_that_goes_or_hangs_shows_nothing() {
    let lost = "[[fault]]\nkind = \"vanish\"\nerror = \"GPU_IS_LOST\"\ngpu = 0\nfrom_ms = 3000\n";
    let hang = "[[fault]]\nkind = \"hang\"\ncall = \"nvmlDeviceGetFieldValues\"\ngpu = 0\nfrom_ms = 3000\n";
    for script in [lost, hang] {
        let fake = fake(&format!("{TWO}{script}"));
        let mut exporter = Exporter::start(&fake);
        let uuids = uuids(&fake);
        let up =
            |scrape: &Scrape| uuids.iter().flat_map(|u| scrape.values("gpumon_up", u)).collect::<Vec<_>>();
        until(10, "both are up", || up(&exporter.scrape()) == [1.0, 1.0]);
        until(20, "the first one is down", || up(&exporter.scrape()) == [0.0, 1.0]);
        let scrape = exporter.scrape();
        assert_eq!(scrape.names(&uuids[0]), BTreeSet::from(REST), "{script}");
        assert_eq!(scrape.values("gpumon_power_watts", &uuids[1]).len(), 1, "the other goes on");
        let child = exporter.child.take().unwrap();
        signal(&child, "-INT");
        let (output, took) = ends(10, child);
        assert_eq!(output.status.code(), Some(0), "{script}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}
