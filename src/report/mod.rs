//! One self-contained HTML page: text, tables and SVG pictures, without scripts or anything fetched.
//!
//! Rule: everything that comes from a file is escaped; whatever was simulated says so at the top and under each
//! picture's heading.
//! Here the parts of a page; the pages are [`pipeline`], [`models`] and [`compare`].

use std::fmt::Write as _;

use crate::plot::style::escape;

pub mod compare;
pub mod models;
pub mod pipeline;

const STYLE: &str = "body{font-family:sans-serif;color:#222;max-width:980px;margin:2em auto;padding:0 1em;line-height:1.45}\
    h1{margin-bottom:0}h2{margin-top:2em}h3{margin-bottom:.3em}\
    .simulated{background:#fff3cd;border:1px solid #e0c36a;padding:.4em .8em}\
    pre{background:#f6f6f6;padding:.8em;overflow-x:auto;font-size:13px}svg{max-width:100%;height:auto}";

/// A page being written.
struct Page {
    html: String,
    simulated: bool,
}

impl Page {
    fn new(title: &str, simulated: bool) -> Self {
        let mut html =
            String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
        let suffix = if simulated { " (simulated)" } else { "" };
        let _ = writeln!(
            html,
            "<title>{}{suffix}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            escape(title)
        );
        let _ = writeln!(html, "<h1>{}</h1>", escape(title));
        let _ = writeln!(html, "<p>gpumon {}</p>", env!("CARGO_PKG_VERSION"));
        if simulated {
            html += "<p class=\"simulated\"><b>simulated</b>: the GPU and the models are simulated; nothing here was measured on \
                     hardware.</p>\n";
        }
        Self { html, simulated }
    }

    fn title_of(&self, title: &str) -> String {
        if self.simulated { format!("{title} (simulated)") } else { title.into() }
    }

    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>", escape(&self.title_of(text)));
    }

    fn small_heading(&mut self, text: &str) {
        let _ = writeln!(self.html, "<h3>{}</h3>", escape(text));
    }

    fn text(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p>{}</p>", escape(text));
    }

    fn preformatted(&mut self, text: &str) {
        let lines: Vec<String> = text.lines().map(escape).collect();
        let _ = writeln!(self.html, "<pre>{}</pre>", lines.join("\n"));
    }

    /// A picture made here, whose text is escaped already.
    fn svg(&mut self, svg: &str) {
        let _ = writeln!(self.html, "<div>{svg}</div>");
    }

    /// From here to [`Page::end_details`] only the summary shows until the reader opens it.
    fn begin_details(&mut self, summary: &str) {
        let _ = writeln!(self.html, "<details><summary>{}</summary>", escape(&self.title_of(summary)));
    }

    fn end_details(&mut self) {
        self.html += "</details>\n";
    }

    fn finish(mut self) -> String {
        self.html += "</body>\n</html>\n";
        self.html
    }
}
