//! The worker's side of the protocol (docs/worker-protocol.md), over any engine.
//!
//! Rule: asks are read by a thread, so that a `stop` is seen between two batches; a run tells its times each 50 ms. Nothing
//! touches the GPU before `context` or `load`.
//! Cases: an ask that is no ask is answered with an error; where the asks end, the worker does.

use std::io::{self, BufRead, Write};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, unbounded};
use serde::Deserialize;
use serde_json::{Value, json};

use super::gpu::{CudaError, Gpu};
use super::model::Model;
use super::net::Net;
use crate::workload::PROTOCOL_VERSION;

/// A run tells its times this often.
const TELL_EACH: Duration = Duration::from_millis(50);
const OPS: [&str; 8] = ["context", "load", "unload", "batch", "run", "stop", "memory", "quit"];

/// Why an engine did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// This batch size cannot be had.
    DoesNotFit(String),
    /// This ask failed, the next may not.
    Failed(String),
    /// Nothing more will work in this process.
    Fatal(String),
}

/// What serves batches.
pub trait Engine {
    /// Makes a context, and nothing more.
    fn context(&mut self) -> Result<(), Trouble>;

    /// Makes the model ready for batches of so many items; says what is special about how it runs.
    fn load(&mut self, items: u32) -> Result<String, Trouble>;

    /// Gives the model's memory back.
    fn unload(&mut self) -> Result<(), Trouble>;

    /// Runs one batch; gives its time, µs.
    fn batch(&mut self) -> Result<f64, Trouble>;

    /// Memory that the loaded model takes, bytes.
    fn memory(&self) -> u64;
}

#[derive(Deserialize)]
struct Ask {
    op: String,
    batch: Option<u32>,
    id: Option<u64>,
    seconds: Option<f64>,
    deadline_us: Option<f64>,
}

impl Ask {
    fn quit() -> Self {
        Self { op: "quit".into(), batch: None, id: None, seconds: None, deadline_us: None }
    }
}

/// Serves until it is asked to quit, or the asks end.
pub fn serve(
    engine: &mut dyn Engine,
    name: &str,
    asks: impl BufRead + Send + 'static,
    output: &mut dyn Write,
) -> io::Result<()> {
    let (send, asked) = unbounded();
    thread::spawn(move || {
        for line in asks.lines() {
            let Ok(line) = line else { break };
            if send.send(serde_json::from_str(&line).map_err(|e| e.to_string())).is_err() {
                return;
            }
        }
        // Whoever asked is gone. A run that is on ends too.
        let _ = send.send(Ok(Ask::quit()));
    });
    say(output, json!({"version": PROTOCOL_VERSION, "name": name, "ops": OPS, "green": true}))?;
    while let Ok(ask) = asked.recv() {
        let ask = match ask {
            Ok(ask) => ask,
            Err(odd) => {
                say(output, trouble(&Trouble::Failed(odd)))?;
                continue;
            }
        };
        let answer = match ask.op.as_str() {
            "context" => engine.context().map(|()| Some(json!({}))),
            "load" => load(engine, ask.batch),
            "unload" => engine.unload().map(|()| Some(json!({}))),
            "batch" => engine.batch().map(|us| {
                let met = ask.deadline_us.map(|deadline_us| us <= deadline_us);
                Some(json!({"id": ask.id, "batch_us": us, "met": met}))
            }),
            "run" => run(engine, ask.seconds, &asked, output)?,
            "memory" => Ok(Some(json!({"memory_bytes": engine.memory()}))),
            "quit" => return say(output, json!({})),
            // One that crossed the end of its run.
            "stop" => Ok(None),
            other => Err(Trouble::Failed(format!("`{other}` is no op; expected one of {}", OPS.join(", ")))),
        };
        match answer {
            Ok(Some(answer)) => say(output, answer)?,
            Ok(None) => {}
            Err(wrong) => say(output, trouble(&wrong))?,
        }
    }
    Ok(())
}

fn load(engine: &mut dyn Engine, items: Option<u32>) -> Result<Option<Value>, Trouble> {
    match items {
        Some(items @ 1..) => {
            let note = engine.load(items)?;
            Ok(Some(json!({"memory_bytes": engine.memory(), "note": note})))
        }
        _ => Err(Trouble::Failed("`load` has no `batch` of 1 or more".into())),
    }
}

/// Runs batches back to back; the last line is the answer.
fn run(
    engine: &mut dyn Engine,
    seconds: Option<f64>,
    asked: &Receiver<Result<Ask, String>>,
    output: &mut dyn Write,
) -> io::Result<Result<Option<Value>, Trouble>> {
    let Some(seconds) = seconds.filter(|s| (0.0..=1e6).contains(s)) else {
        return Ok(Err(Trouble::Failed("`run` has no `seconds` from 0 to 1000000".into())));
    };
    let (until, mut told) = (Instant::now() + Duration::from_secs_f64(seconds), Instant::now());
    let mut times = Vec::new();
    loop {
        match engine.batch() {
            Ok(us) => times.push(us),
            Err(wrong) => return Ok(Err(wrong)),
        }
        // What comes during a run is `stop`, or the end.
        if !asked.is_empty() || Instant::now() >= until {
            return Ok(Ok(Some(json!({"batches_us": times, "done": true}))));
        }
        if told.elapsed() >= TELL_EACH {
            say(output, json!({"batches_us": times, "done": false}))?;
            times.clear();
            told = Instant::now();
        }
    }
}

fn say(output: &mut dyn Write, message: Value) -> io::Result<()> {
    writeln!(output, "{message}")?;
    output.flush()
}

fn trouble(wrong: &Trouble) -> Value {
    let (kind, message) = match wrong {
        Trouble::DoesNotFit(message) => ("does_not_fit", message),
        Trouble::Failed(message) => ("failed", message),
        Trouble::Fatal(message) => ("fatal", message),
    };
    json!({"error": {"kind": kind, "message": message}})
}

/// A net on a GPU.
pub struct NetEngine {
    net: Net,
    green: Option<u16>,
    // Dropped before the GPU that it is on.
    model: Option<Model>,
    gpu: Option<Gpu>,
}

impl NetEngine {
    /// An engine that has not touched the GPU yet. `green`: on so many SMs.
    pub fn new(net: Net, green: Option<u16>) -> Self {
        Self { net, green, model: None, gpu: None }
    }

    fn gpu(&mut self) -> Result<&Gpu, Trouble> {
        if self.gpu.is_none() {
            let gpu =
                Gpu::open(self.green, self.net.multiplier).map_err(|e| Trouble::Fatal(e.to_string()))?;
            self.gpu = Some(gpu);
        }
        self.gpu.as_ref().ok_or_else(|| Trouble::Fatal("there is no context".into()))
    }
}

impl Engine for NetEngine {
    fn context(&mut self) -> Result<(), Trouble> {
        self.gpu().map(|_| ())
    }

    fn load(&mut self, items: u32) -> Result<String, Trouble> {
        self.model = None;
        let net = self.net.clone();
        let gpu = self.gpu()?;
        let model = Model::load(gpu, &net, items).map_err(said)?;
        let graph = if model.captured() { "" } else { ", no CUDA graph" };
        let note = format!("matrix products by {}{graph}", gpu.multiplier());
        self.model = Some(model);
        Ok(note)
    }

    fn unload(&mut self) -> Result<(), Trouble> {
        self.model = None;
        Ok(())
    }

    fn batch(&mut self) -> Result<f64, Trouble> {
        let (Some(model), Some(gpu)) = (&self.model, &self.gpu) else {
            return Err(Trouble::Failed("no batch size is loaded".into()));
        };
        model.run(gpu).map_err(said)
    }

    fn memory(&self) -> u64 {
        self.model.as_ref().map_or(0, Model::bytes)
    }
}

/// After an error of CUDA that is not about memory its context may be of no use any more.
fn said(error: CudaError) -> Trouble {
    match error {
        CudaError::Memory(_) => Trouble::DoesNotFit(error.to_string()),
        CudaError::Cannot(message) => Trouble::DoesNotFit(message),
        CudaError::Failed { .. } => Trouble::Fatal(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Counts, and takes a millisecond.
    struct Sleeps {
        items: u32,
    }

    impl Engine for Sleeps {
        fn context(&mut self) -> Result<(), Trouble> {
            Ok(())
        }

        fn load(&mut self, items: u32) -> Result<String, Trouble> {
            if items > 64 {
                return Err(Trouble::DoesNotFit("64 is the most".into()));
            }
            self.items = items;
            Ok("sleeps".into())
        }

        fn unload(&mut self) -> Result<(), Trouble> {
            self.items = 0;
            Ok(())
        }

        fn batch(&mut self) -> Result<f64, Trouble> {
            thread::sleep(Duration::from_millis(1));
            if self.items == 0 { Err(Trouble::Failed("no batch size is loaded".into())) } else { Ok(1e3) }
        }

        fn memory(&self) -> u64 {
            u64::from(self.items)
        }
    }

    fn answers(asks: &str) -> Vec<Value> {
        let mut output = Vec::new();
        serve(&mut Sleeps { items: 0 }, "sleeps", Cursor::new(asks.to_owned()), &mut output).unwrap();
        lines(&output)
    }

    fn lines(output: &[u8]) -> Vec<Value> {
        std::str::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn each_ask_has_its_answer() {
        let said = answers(
            "{\"op\":\"context\"}\n{\"op\":\"batch\",\"id\":1}\n{\"op\":\"load\",\"batch\":65}\n{\"op\":\"load\"}\n\
             {\"op\":\"load\",\"batch\":8}\n{\"op\":\"batch\",\"id\":2,\"deadline_us\":10}\n{\"op\":\"memory\"}\n\
             {\"op\":\"stop\"}\n{\"op\":\"dance\"}\nodd\n{\"op\":\"unload\"}\n{\"op\":\"quit\"}\n{\"op\":\"context\"}\n",
        );
        let kinds: Vec<_> = said.iter().map(|a| a["error"]["kind"].as_str().unwrap_or("")).collect();
        assert_eq!(
            kinds,
            ["", "", "failed", "does_not_fit", "failed", "", "", "", "failed", "failed", "", ""]
        );
        assert_eq!(said[0]["version"], PROTOCOL_VERSION);
        assert_eq!(said[5]["memory_bytes"], 8);
        assert_eq!((&said[6]["id"], &said[6]["met"]), (&json!(2), &json!(false)));
    }

    #[test]
    fn a_run_ends_when_its_time_is_over_or_something_is_asked() {
        let said =
            answers("{\"op\":\"load\",\"batch\":1}\n{\"op\":\"run\",\"seconds\":60}\n{\"op\":\"stop\"}\n");
        assert_eq!(said[2]["done"], true, "{said:?}");
        let (reader, mut writer) = io::pipe().unwrap();
        let asker = thread::spawn(move || {
            writer.write_all(b"{\"op\":\"load\",\"batch\":1}\n{\"op\":\"run\",\"seconds\":0.2}\n").unwrap();
            thread::sleep(Duration::from_secs(1));
        });
        let mut output = Vec::new();
        serve(&mut Sleeps { items: 0 }, "sleeps", io::BufReader::new(reader), &mut output).unwrap();
        asker.join().unwrap();
        let said = lines(&output);
        let said = &said[..said.len() - 1];
        let times: usize = said.iter().filter_map(|a| a["batches_us"].as_array()).map(Vec::len).sum();
        assert!(said.len() > 3 && times > 10, "{said:?}");
        assert_eq!(said.last().unwrap()["done"], true);
        let said =
            answers("{\"op\":\"run\",\"seconds\":1}\n{\"op\":\"run\"}\n{\"op\":\"run\",\"seconds\":-1}\n");
        assert!(said[1..4].iter().all(|a| a["error"]["kind"] == "failed"), "{said:?}");
    }
}
