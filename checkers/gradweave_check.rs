//! Checks a schedule, and proofs that no schedule takes less: a second checker, by other means.
//!
//!     rustc --edition 2021 -O -C overflow-checks=on gradweave_check.rs
//!     ./gradweave_check [--aggregating-switches] FILE.json    (- for standard input)
//!     ./gradweave_check --lines                               (one file per line; 1 or 0 for each part)
//!
//! Written from docs/reference/schedule-file.md and docs/concepts/certificates.md; it shares no code
//! with Gradweave or gradweave_check.py, and needs only the standard library. It implements exact
//! fractions. Exit status: 0 all is accepted, 1 not all, 2 no such file.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

type Res<T> = Result<T, String>;

fn need(holds: bool, otherwise: &str) -> Res<()> {
    if holds { Ok(()) } else { Err(otherwise.to_string()) }
}

// ------------------------------------------------------------------------------ natural numbers

/// Limbs of 32 bits, the lowest first, without leading zeros.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Nat(Vec<u32>);

impl Nat {
    fn of(mut value: u128) -> Nat {
        let mut limbs = vec![];
        while value > 0 {
            limbs.push(value as u32);
            value >>= 32;
        }
        Nat(limbs)
    }
    fn trimmed(mut self) -> Nat {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }
    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }
    fn bits(&self) -> usize {
        self.0.last().map_or(0, |top| 32 * self.0.len() - top.leading_zeros() as usize)
    }
    fn trailing(&self) -> usize {
        let low = self.0.iter().take_while(|limb| **limb == 0).count();
        self.0.get(low).map_or(0, |limb| 32 * low + limb.trailing_zeros() as usize)
    }
    fn compare(&self, other: &Nat) -> Ordering {
        let size = self.0.len().cmp(&other.0.len());
        size.then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
    fn plus(&self, other: &Nat) -> Nat {
        let (mut carry, mut sum) = (0u64, vec![]);
        for k in 0..self.0.len().max(other.0.len()) {
            carry += *self.0.get(k).unwrap_or(&0) as u64 + *other.0.get(k).unwrap_or(&0) as u64;
            sum.push(carry as u32);
            carry >>= 32;
        }
        sum.push(carry as u32);
        Nat(sum).trimmed()
    }
    /// The difference; the subtrahend must not be larger.
    fn minus(&self, other: &Nat) -> Nat {
        let (mut borrow, mut rest) = (0i64, vec![]);
        for k in 0..self.0.len() {
            let mut limb = self.0[k] as i64 - *other.0.get(k).unwrap_or(&0) as i64 - borrow;
            borrow = (limb < 0) as i64;
            limb += borrow << 32;
            rest.push(limb as u32);
        }
        assert!(borrow == 0 && other.0.len() <= self.0.len());
        Nat(rest).trimmed()
    }
    fn times(&self, other: &Nat) -> Nat {
        let mut product = vec![0u32; self.0.len() + other.0.len()];
        for (i, a) in self.0.iter().enumerate() {
            let mut carry = 0u64;
            for (j, b) in other.0.iter().enumerate() {
                carry += product[i + j] as u64 + *a as u64 * *b as u64;
                product[i + j] = carry as u32;
                carry >>= 32;
            }
            product[i + other.0.len()] = carry as u32;
        }
        Nat(product).trimmed()
    }
    fn left(&self, bits: usize) -> Nat {
        let mut limbs = vec![0u32; bits / 32];
        let mut carry = 0u64;
        for limb in &self.0 {
            carry |= (*limb as u64) << (bits % 32);
            limbs.push(carry as u32);
            carry >>= 32;
        }
        limbs.push(carry as u32);
        Nat(limbs).trimmed()
    }
    fn right(&self, bits: usize) -> Nat {
        let kept = &self.0[(bits / 32).min(self.0.len())..];
        let mut limbs = vec![];
        for (k, limb) in kept.iter().enumerate() {
            let both = *limb as u64 | (*kept.get(k + 1).unwrap_or(&0) as u64) << 32;
            limbs.push((both >> (bits % 32)) as u32);
        }
        Nat(limbs).trimmed()
    }
    /// Quotient and remainder, bit by bit.
    fn divided(&self, by: &Nat) -> (Nat, Nat) {
        assert!(!by.is_zero());
        let (mut quotient, mut rest) = (vec![0u32; self.0.len()], self.clone());
        for shift in (0..=self.bits().saturating_sub(by.bits())).rev() {
            let part = by.left(shift);
            if part.compare(&rest) != Ordering::Greater {
                rest = rest.minus(&part);
                quotient[shift / 32] |= 1 << (shift % 32);
            }
        }
        (Nat(quotient).trimmed(), rest)
    }
    fn gcd(&self, other: &Nat) -> Nat {
        if self.is_zero() || other.is_zero() {
            return self.plus(other);
        }
        let twos = self.trailing().min(other.trailing());
        let (mut a, mut b) = (self.right(self.trailing()), other.right(other.trailing()));
        while a != b {
            if a.compare(&b) == Ordering::Less {
                std::mem::swap(&mut a, &mut b);
            }
            a = a.minus(&b);
            a = a.right(a.trailing());
        }
        a.left(twos)
    }
    fn parsed(digits: &str) -> Nat {
        let mut value = Nat(vec![]);
        for digit in digits.bytes() {
            value = value.times(&Nat(vec![10])).plus(&Nat::of((digit - b'0') as u128));
        }
        value
    }
    fn text(&self) -> String {
        let (mut limbs, mut digits) = (self.0.clone(), vec![]);
        while !limbs.is_empty() {
            let mut rest = 0u64;
            for limb in limbs.iter_mut().rev() {
                rest = rest << 32 | *limb as u64;
                *limb = (rest / 10) as u32;
                rest %= 10;
            }
            digits.push(b'0' + rest as u8);
            limbs = Nat(limbs).trimmed().0;
        }
        digits.reverse();
        if digits.is_empty() { "0".into() } else { String::from_utf8(digits).unwrap() }
    }
    fn float(&self) -> f64 {
        self.0.iter().rev().fold(0.0, |sum, limb| sum * 4294967296.0 + *limb as f64)
    }
}

// ------------------------------------------------------------------------------------ fractions

/// A fraction in lowest terms.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Frac {
    negative: bool,
    over: Nat,
    under: Nat,
}

impl Frac {
    fn new(negative: bool, over: Nat, under: Nat) -> Frac {
        assert!(!under.is_zero());
        let twos = over.trailing().min(under.trailing());
        let (mut over, mut under) = (over.right(twos), under.right(twos));
        if over.is_zero() {
            return Frac { negative: false, over, under: Nat::of(1) };
        }
        if under.bits() > 1 && under.bits() != under.trailing() + 1 {
            let common = over.gcd(&under);
            if common.bits() > 1 {
                over = over.divided(&common).0;
                under = under.divided(&common).0;
            }
        }
        Frac { negative, over, under }
    }
    fn whole(value: i128) -> Frac {
        Frac::new(value < 0, Nat::of(value.unsigned_abs()), Nat::of(1))
    }
    fn of_float(value: f64) -> Res<Frac> {
        need(value.is_finite(), "a number that is not finite")?;
        let bits = value.to_bits();
        let exponent = (bits >> 52 & 2047) as i64;
        let low = (bits & ((1 << 52) - 1)) as u128;
        let (fraction, power) = if exponent == 0 { (low, -1074) } else { (low | 1 << 52, exponent - 1075) };
        let over = Nat::of(fraction);
        Ok(if power >= 0 {
            Frac::new(value < 0.0, over.left(power as usize), Nat::of(1))
        } else {
            Frac::new(value < 0.0, over, Nat::of(1).left(-power as usize))
        })
    }
    /// Parses "p" or "p/q", in decimal digits.
    fn parsed(text: &str) -> Res<Frac> {
        let (over, under) = text.split_once('/').unwrap_or((text, "1"));
        for part in [over, under] {
            let digits = part.bytes().all(|c| c.is_ascii_digit());
            need(digits && (1..=3000).contains(&part.len()), "expected p/q")?;
        }
        let under = Nat::parsed(under);
        need(!under.is_zero(), "division by zero")?;
        Ok(Frac::new(false, Nat::parsed(over), under))
    }
    fn plus(&self, other: &Frac) -> Frac {
        let (a, b, under) = if self.under == other.under {
            (self.over.clone(), other.over.clone(), self.under.clone())
        } else {
            (self.over.times(&other.under), other.over.times(&self.under), self.under.times(&other.under))
        };
        if self.negative == other.negative {
            return Frac::new(self.negative, a.plus(&b), under);
        }
        match a.compare(&b) {
            Ordering::Less => Frac::new(other.negative, b.minus(&a), under),
            _ => Frac::new(self.negative, a.minus(&b), under),
        }
    }
    fn negated(&self) -> Frac {
        Frac { negative: !self.negative && !self.over.is_zero(), ..self.clone() }
    }
    fn minus(&self, other: &Frac) -> Frac {
        self.plus(&other.negated())
    }
    fn times(&self, other: &Frac) -> Frac {
        let negative = self.negative != other.negative;
        Frac::new(negative, self.over.times(&other.over), self.under.times(&other.under))
    }
    fn per(&self, other: &Frac) -> Res<Frac> {
        need(!other.over.is_zero(), "division by zero")?;
        let negative = self.negative != other.negative;
        Ok(Frac::new(negative, self.over.times(&other.under), self.under.times(&other.over)))
    }
    fn floor(&self) -> Nat {
        if self.negative { Nat(vec![]) } else { self.over.divided(&self.under).0 }
    }
    fn ceiling(&self) -> Frac {
        let (quotient, rest) = self.over.divided(&self.under);
        let up = if rest.is_zero() || self.negative { quotient } else { quotient.plus(&Nat::of(1)) };
        Frac::new(self.negative, up, Nat::of(1))
    }
    fn positive(&self) -> bool {
        !self.negative && !self.over.is_zero()
    }
    fn float(&self) -> f64 {
        let shift = 64 + self.under.bits() as i64 - self.over.bits() as i64;
        let scaled = if shift >= 0 { self.over.left(shift as usize) } else { self.over.clone() };
        let under = if shift < 0 { self.under.left(-shift as usize) } else { self.under.clone() };
        let value = scaled.divided(&under).0.float() * 2f64.powi(-shift as i32);
        if self.negative { -value } else { value }
    }
    fn text(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let under = if self.under == Nat::of(1) { String::new() } else { "/".to_string() + &self.under.text() };
        format!("{sign}{}{under}", self.over.text())
    }
}

impl Ord for Frac {
    fn cmp(&self, other: &Frac) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (negative, _) => {
                let order = if self.under == other.under {
                    self.over.compare(&other.over)
                } else {
                    self.over.times(&other.under).compare(&other.over.times(&self.under))
                };
                if negative { order.reverse() } else { order }
            }
        }
    }
}

impl PartialOrd for Frac {
    fn partial_cmp(&self, other: &Frac) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn zero() -> Frac {
    Frac::whole(0)
}

fn total<'a>(values: impl IntoIterator<Item = &'a Frac>) -> Frac {
    values.into_iter().fold(zero(), |sum, value| sum.plus(value))
}

/// The smallest T for which the sum of rate · max(0, T − idle) is the amount to be paid.
fn until(paid: &Frac, mut charges: Vec<(Frac, Frac)>) -> Frac {
    charges.sort();
    let (mut rate, mut level, mut time) = (zero(), zero(), zero());
    for (idle, more) in charges {
        let then = level.plus(&rate.times(&idle.minus(&time)));
        if then >= *paid {
            break;
        }
        (level, time, rate) = (then, idle, rate.plus(&more));
    }
    if paid.positive() && rate.positive() {
        time.plus(&paid.minus(&level).per(&rate).unwrap())
    } else {
        zero()
    }
}

// ----------------------------------------------------------------------------------------- JSON

#[derive(Clone, PartialEq)]
enum Json {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn parsed(text: &[u8]) -> Res<Json> {
        let mut parser = Parser { text, at: 0 };
        let value = parser.value(0)?;
        parser.space();
        need(parser.at == text.len(), "JSON: more after the end")?;
        Ok(value)
    }
    fn space(&mut self) {
        while self.at < self.text.len() && b" \t\r\n".contains(&self.text[self.at]) {
            self.at += 1;
        }
    }
    fn next(&mut self) -> Res<u8> {
        self.space();
        self.text.get(self.at).copied().ok_or("JSON: it ends too early".to_string())
    }
    fn takes(&mut self, what: u8) -> Res<bool> {
        let there = self.next()? == what;
        self.at += there as usize;
        Ok(there)
    }
    fn value(&mut self, depth: usize) -> Res<Json> {
        need(depth < 100, "JSON: nested too deeply")?;
        match self.next()? {
            b'{' => {
                self.at += 1;
                let mut object = BTreeMap::new();
                if self.takes(b'}')? {
                    return Ok(Json::Object(object));
                }
                loop {
                    self.space();
                    let key = self.string()?;
                    need(self.takes(b':')?, "JSON: expected a colon")?;
                    object.insert(key, self.value(depth + 1)?);
                    if !self.takes(b',')? {
                        need(self.takes(b'}')?, "JSON: expected a brace")?;
                        return Ok(Json::Object(object));
                    }
                }
            }
            b'[' => {
                self.at += 1;
                let mut list = vec![];
                if self.takes(b']')? {
                    return Ok(Json::List(list));
                }
                loop {
                    list.push(self.value(depth + 1)?);
                    if !self.takes(b',')? {
                        need(self.takes(b']')?, "JSON: expected a bracket")?;
                        return Ok(Json::List(list));
                    }
                }
            }
            b'"' => Ok(Json::Text(self.string()?)),
            _ => {
                let begin = self.at;
                let inside = |c: &u8| c.is_ascii_alphanumeric() || b"+-.".contains(c);
                while self.text.get(self.at).is_some_and(inside) {
                    self.at += 1;
                }
                let word = std::str::from_utf8(&self.text[begin..self.at]).unwrap();
                match word {
                    "null" => return Ok(Json::Null),
                    "true" | "false" => return Ok(Json::Bool(word == "true")),
                    _ => {}
                }
                let digits = word.strip_prefix('-').unwrap_or(word);
                need(digits.starts_with(|c: char| c.is_ascii_digit()), "JSON: no such word")?;
                if digits.bytes().all(|c| c.is_ascii_digit()) {
                    need(digits.len() == 1 || !digits.starts_with('0'), "JSON: a leading zero")?;
                    return word.parse().map(Json::Int).map_err(|e| format!("JSON: {e}"));
                }
                let (whole, rest) = digits.split_at(digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len()));
                need(whole.len() == 1 || !whole.starts_with('0'), "JSON: a leading zero")?;
                if let Some(after) = rest.strip_prefix('.') {
                    need(after.starts_with(|c: char| c.is_ascii_digit()), "JSON: no digit after the point")?;
                }
                let value: f64 = word.parse().map_err(|e| format!("JSON: {e}"))?;
                Ok(Json::Float(value))
            }
        }
    }
    fn string(&mut self) -> Res<String> {
        need(self.text.get(self.at) == Some(&b'"'), "JSON: expected a string")?;
        self.at += 1;
        let mut found = vec![];
        loop {
            let c = *self.text.get(self.at).ok_or("JSON: a string without end")?;
            self.at += 1;
            match c {
                b'"' => return String::from_utf8(found).map_err(|e| e.to_string()),
                b'\\' => {
                    let escaped = *self.text.get(self.at).ok_or("JSON: a string without end")?;
                    self.at += 1;
                    match escaped {
                        b'n' => found.push(b'\n'),
                        b't' => found.push(b'\t'),
                        b'r' => found.push(b'\r'),
                        b'b' => found.push(8),
                        b'f' => found.push(12),
                        b'"' | b'\\' | b'/' => found.push(escaped),
                        b'u' => {
                            let digits = self.text.get(self.at..self.at + 4).ok_or("JSON: \\u")?;
                            let digits = std::str::from_utf8(digits).map_err(|e| e.to_string())?;
                            let code = u32::from_str_radix(digits, 16).map_err(|e| e.to_string())?;
                            self.at += 4;
                            let c = char::from_u32(code).unwrap_or('\u{fffd}');
                            found.extend(c.to_string().bytes());
                        }
                        _ => return Err("JSON: no such escape".into()),
                    }
                }
                0..32 => return Err("JSON: a control character in a string".into()),
                c => found.push(c),
            }
        }
    }
}

impl Json {
    fn find(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(object) => object.get(key),
            _ => None,
        }
    }
    fn get(&self, key: &str) -> Res<&Json> {
        self.find(key).ok_or(format!("{key}: missing"))
    }
    fn list(&self) -> Res<&[Json]> {
        match self {
            Json::List(list) => Ok(list),
            _ => Err("expected a list".into()),
        }
    }
    fn text(&self) -> Res<&str> {
        match self {
            Json::Text(text) => Ok(text),
            _ => Err("expected a text".into()),
        }
    }
    fn int(&self) -> Res<i128> {
        match self {
            Json::Int(value) => Ok(*value),
            _ => Err("expected an integer".into()),
        }
    }
    /// An integer from 0 to below `most`.
    fn below(&self, most: u128) -> Res<u128> {
        let value = self.int()?;
        need(value >= 0 && (value as u128) < most, "out of range")?;
        Ok(value as u128)
    }
    fn index(&self, most: usize) -> Res<usize> {
        Ok(self.below(most as u128)? as usize)
    }
    fn indices(&self, most: usize) -> Res<Vec<usize>> {
        self.list()?.iter().map(|value| value.index(most)).collect()
    }
    fn number(&self) -> Res<Frac> {
        match self {
            Json::Int(value) => Frac::of_float(*value as f64),
            Json::Float(value) => Frac::of_float(*value),
            _ => Err("expected a number".into()),
        }
    }
    fn exact(&self) -> Res<Frac> {
        Frac::parsed(self.text()?)
    }
    fn flag(&self) -> bool {
        *self == Json::Bool(true)
    }
}

// -------------------------------------------------------------------------------------- SHA-256

/// The fractional parts of square and cube roots of the first primes (FIPS 180-4).
fn constants() -> &'static (Vec<u32>, Vec<u32>) {
    static KNOWN: OnceLock<(Vec<u32>, Vec<u32>)> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let primes: Vec<u64> = (2u64..312).filter(|n| (2..*n).all(|d| n % d > 0)).collect();
        let root = |n: u64, power: usize| -> u32 {
            // The largest r with r^power <= n * 2^(32 * power); its low 32 bits.
            let (mut low, mut high) = (0u128, 1u128 << 40);
            let most = Nat::of(n as u128).left(32 * power);
            while high - low > 1 {
                let middle = (low + high) / 2;
                let value = (0..power).fold(Nat::of(1), |value, _| value.times(&Nat::of(middle)));
                if value.compare(&most) == Ordering::Greater { high = middle } else { low = middle }
            }
            low as u32
        };
        let roots = |count: usize, power: usize| primes[..count].iter().map(|p| root(*p, power)).collect();
        (roots(8, 2), roots(64, 3))
    })
}

fn sha256(message: &[u8]) -> String {
    let (mut state, rounds) = (constants().0.clone(), &constants().1);
    let mut padded = message.to_vec();
    padded.push(0x80);
    while padded.len() % 64 != 56 {
        padded.push(0);
    }
    padded.extend((message.len() as u64 * 8).to_be_bytes());
    for chunk in padded.chunks(64) {
        let mut w: Vec<u32> = chunk.chunks(4).map(|b| u32::from_be_bytes(b.try_into().unwrap())).collect();
        for t in 16..64 {
            let s0 = w[t - 15].rotate_right(7) ^ w[t - 15].rotate_right(18) ^ w[t - 15] >> 3;
            let s1 = w[t - 2].rotate_right(17) ^ w[t - 2].rotate_right(19) ^ w[t - 2] >> 10;
            w.push(w[t - 16].wrapping_add(s0).wrapping_add(w[t - 7]).wrapping_add(s1));
        }
        let mut v = state.clone();
        for t in 0..64 {
            let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = v[4] & v[5] ^ !v[4] & v[6];
            let t1 = v[7].wrapping_add(s1).wrapping_add(choice).wrapping_add(rounds[t]).wrapping_add(w[t]);
            let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = v[0] & v[1] ^ v[0] & v[2] ^ v[1] & v[2];
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(t1);
            v[0] = t1.wrapping_add(s0).wrapping_add(majority);
        }
        state.iter_mut().zip(v).for_each(|(s, x)| *s = s.wrapping_add(x));
    }
    state.iter().map(|word| format!("{word:08x}")).collect()
}

/// A list as JSON without spaces.
fn listed<T>(values: &[T], text: impl Fn(&T) -> String) -> String {
    format!("[{}]", values.iter().map(text).collect::<Vec<_>>().join(","))
}

fn integers(values: &[usize]) -> String {
    listed(values, |value| value.to_string())
}

// -------------------------------------------------------------------------------------- network

struct Network {
    size: usize,
    servers: Vec<usize>,
    is_server: Vec<bool>,
    rank: Vec<usize>,
    ends: Vec<(usize, usize)>,
    room: Vec<u64>,
    rate: Vec<Frac>,
    delay: Vec<Frac>,
    hold: Vec<Frac>,
    link: HashMap<(usize, usize), usize>,
    hash: String,
    messages: OnceLock<Res<Messages>>,
}

impl Network {
    fn new(data: &Json) -> Res<Network> {
        let most = data.get("servers")?.list()?.len() + data.get("switches")?.list()?.len();
        let mut servers = data.get("servers")?.indices(most)?;
        let mut switches = data.get("switches")?.indices(most)?;
        servers.sort();
        switches.sort();
        let distinct: HashSet<_> = servers.iter().chain(&switches).collect();
        need(distinct.len() == most && servers.len() > 1, "the nodes are not all, each once")?;
        let links = data.get("links")?;
        let (source, target) = (links.get("source")?.indices(most)?, links.get("target")?.indices(most)?);
        let count = source.len();
        let column = |name: &str| -> Res<Vec<Frac>> {
            let found: Res<Vec<_>> = links.get(name)?.list()?.iter().map(|x| x.number()).collect();
            found
        };
        let (rate, delay) = (column("bandwidth_bytes_per_s")?, column("latency_s")?);
        let hold = match links.find("overhead_s") {
            Some(_) => column("overhead_s")?,
            None => vec![Frac::of_float(1e-6)?; count],
        };
        let room: Res<Vec<_>> = links.get("capacity")?.list()?.iter().map(|x| x.below(1 << 31)).collect();
        let room = room?;
        let sizes = [target.len(), rate.len(), delay.len(), hold.len(), room.len()];
        need(sizes.iter().all(|size| *size == count), "links: columns of different lengths")?;
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|k| (source[*k], target[*k]));
        let mut net = Network {
            size: most, is_server: vec![false; most], rank: vec![usize::MAX; most], ends: vec![], room: vec![],
            rate: vec![], delay: vec![], hold: vec![], link: HashMap::new(), hash: String::new(), servers,
            messages: OnceLock::new(),
        };
        for (rank, server) in net.servers.iter().enumerate() {
            net.is_server[*server] = true;
            net.rank[*server] = rank;
        }
        for k in order {
            let ends = (source[k], target[k]);
            need(ends.0 != ends.1 && room[k] > 0 && rate[k].positive(), "a link that carries nothing")?;
            need(!delay[k].negative && !hold[k].negative, "a link with negative times")?;
            need(net.link.insert(ends, net.ends.len()).is_none(), "a link direction twice")?;
            net.ends.push(ends);
            net.room.push(room[k] as u64);
            net.rate.push(rate[k].clone());
            net.delay.push(delay[k].clone());
            net.hold.push(hold[k].clone());
        }
        need(net.ends.iter().all(|(a, b)| net.link.contains_key(&(*b, *a))), "a link of one direction")?;
        let rows: Vec<usize> = (0..count).collect();
        let written = listed(&rows, |k| {
            let ((a, b), room) = (net.ends[*k], net.room[*k]);
            let [rate, delay, hold] = [&net.rate[*k], &net.delay[*k], &net.hold[*k]].map(|x| x.text());
            format!("[{a},{b},{room},\"{rate}\",\"{delay}\",\"{hold}\"]")
        });
        let text = format!("[{},{},{written}]", integers(&net.servers), integers(&switches));
        net.hash = sha256(text.as_bytes());
        Ok(net)
    }

    /// Liberties that no schedule on it can take.
    fn never(&self) -> Vec<Liberty> {
        let several = |s: &usize| self.ends.iter().filter(|(a, _)| a == s).count() > 1;
        let passed = self.size > 2 && self.servers.iter().any(several);
        let can = [(RoutesPassServers, passed), (SwitchesAdd, self.size > self.servers.len())];
        can.into_iter().filter(|x| !x.1).map(|x| x.0).collect()
    }

    /// Ends of the links, reversed if asked.
    fn turned(&self, back: bool) -> Vec<(usize, usize)> {
        self.ends.iter().map(|(a, b)| if back { (*b, *a) } else { (*a, *b) }).collect()
    }

    /// Minimum sums of costs from some nodes to each, or back: labels corrected until none is too large.
    fn least(&self, starts: &[usize], cost: &[Frac], back: bool, through: &dyn Fn(usize) -> bool) -> Vec<Option<Frac>> {
        let mut out = vec![vec![]; self.size];
        for (k, (a, b)) in self.turned(back).into_iter().enumerate() {
            out[a].push((b, k));
        }
        let mut found: Vec<Option<Frac>> = vec![None; self.size];
        let mut waiting: VecDeque<usize> = starts.iter().copied().collect();
        starts.iter().for_each(|node| found[*node] = Some(zero()));
        let first: HashSet<_> = starts.iter().copied().collect();
        let mut queued = vec![false; self.size];
        while let Some(node) = waiting.pop_front() {
            queued[node] = false;
            if !first.contains(&node) && !through(node) {
                continue;
            }
            for (end, k) in &out[node] {
                let there = found[node].as_ref().unwrap().plus(&cost[*k]);
                if found[*end].as_ref().is_none_or(|known| there < *known) {
                    found[*end] = Some(there);
                    if !queued[*end] {
                        queued[*end] = true;
                        waiting.push_back(*end);
                    }
                }
            }
        }
        found
    }

    /// Computed on first use.
    fn messages(&self) -> Res<&Messages> {
        self.messages.get_or_init(|| Messages::new(self)).as_ref().map_err(String::clone)
    }

    fn away(&self, starts: &[usize], back: bool) -> Vec<Option<Frac>> {
        self.least(starts, &self.delay, back, &|_| true)
    }

    /// Minimum numbers of transfers from some servers, or to them, of at most 2^31.
    fn hops(&self, starts: &[usize], back: bool) -> Vec<i128> {
        let counts = |(_, end): (usize, usize)| Frac::whole(self.is_server[end] as i128);
        let cost: Vec<Frac> = self.turned(back).into_iter().map(counts).collect();
        let found = self.least(starts, &cost, back, &|_| true);
        found.iter().map(|x| x.as_ref().map_or(1 << 31, |x| x.float() as i128)).collect()
    }

    /// Seconds for which each link direction is idle: its bytes must come there and go on.
    fn idle(&self, given: &[usize], wanted: &[usize], through: &dyn Fn(usize) -> bool) -> Vec<Option<Frac>> {
        let with_hold = |k: usize, node: usize| {
            if self.is_server[node] { self.delay[k].plus(&self.hold[k]) } else { self.delay[k].clone() }
        };
        let links = || self.ends.iter().enumerate();
        let before: Vec<Frac> = links().map(|(k, ends)| with_hold(k, ends.1)).collect();
        let after: Vec<Frac> = links().map(|(k, ends)| with_hold(k, ends.0)).collect();
        let ahead = self.least(given, &before, false, through);
        let behind = self.least(wanted, &after, true, through);
        links()
            .map(|(k, (a, b))| Some(total([ahead[*a].as_ref()?, &self.delay[k], behind[*b].as_ref()?, &self.hold[k]])))
            .collect()
    }
}

// --------------------------------------------------------------------------------------- demand

struct Block {
    size: Frac,
    given: Vec<usize>,
    wanted: Vec<usize>,
    allowed: BTreeSet<usize>,
    ready: Frac,
}

struct Asked {
    name: String,
    demand: bool,
    hash: Option<String>,
    blocks: Vec<Block>,
}

impl Asked {
    fn new(name: &str, data: Option<&Json>, net: &Network) -> Res<Asked> {
        let demand = name == "demand";
        let all = &net.servers;
        let everyone: BTreeSet<usize> = all.iter().copied().collect();
        let block = |given: Vec<usize>, wanted: Vec<usize>, parts: usize| Block {
            size: Frac::new(false, Nat::of(1), Nat::of(parts as u128)),
            given, wanted, allowed: everyone.clone(), ready: zero(),
        };
        let mut asked = Asked { name: name.into(), demand, hash: None, blocks: vec![] };
        match name {
            "all_reduce" => asked.blocks.push(block(all.clone(), all.clone(), 1)),
            "reduce_scatter" => asked.blocks.extend(all.iter().map(|s| block(all.clone(), vec![*s], all.len()))),
            "all_gather" => asked.blocks.extend(all.iter().map(|s| block(vec![*s], all.clone(), all.len()))),
            "demand" => {}
            _ => return Err("collective: unknown".into()),
        }
        let Some(data) = data.filter(|data| **data != Json::Null) else {
            need(!demand, "demand: missing")?;
            return Ok(asked);
        };
        need(demand, "demand: only with the collective demand")?;
        let servers = |list: &Json| -> Res<Vec<usize>> {
            let mut found = list.indices(net.size)?;
            found.sort();
            let distinct = found.windows(2).all(|pair| pair[0] < pair[1]);
            need(distinct && found.iter().all(|s| net.is_server[*s]), "demand: not servers, each once")?;
            Ok(found)
        };
        let count = data.get("jobs")?.list()?.len();
        let rows = data.get("blocks")?;
        let job = rows.get("job")?.indices(count)?;
        let sizes: Res<Vec<u128>> = rows.get("bytes")?.list()?.iter().map(|x| x.below(1 << 60)).collect();
        let sets = |side: &str| -> Res<Vec<Vec<usize>>> { rows.get(side)?.list()?.iter().map(servers).collect() };
        let (sizes, given, wanted) = (sizes?, sets("contributors")?, sets("destinations")?);
        need([sizes.len(), given.len(), wanted.len()] == [job.len(); 3], "demand: columns of different lengths")?;
        let relays = data.find("relays").map_or(Ok(vec![]), servers)?;
        let ready: Vec<Frac> = match data.find("ready_at_s").map(|x| x.list()).transpose()? {
            Some(times) if !times.is_empty() => times.iter().map(|x| x.number()).collect::<Res<_>>()?,
            _ => vec![zero(); count],
        };
        need(ready.len() == count && ready.iter().all(|x| !x.negative), "demand: ready_at_s")?;
        let mut allowed = vec![relays.iter().copied().collect::<BTreeSet<_>>(); count];
        for k in 0..job.len() {
            let moves = given[k] != wanted[k] || given[k].len() > 1;
            need(sizes[k] > 0 && !given[k].is_empty() && !wanted[k].is_empty() && moves, "demand: an empty block")?;
            allowed[job[k]].extend(given[k].iter().chain(&wanted[k]));
        }
        let text = format!(
            "[{},{},{},{},{},{}]", integers(&job), listed(&sizes, |x| x.to_string()), listed(&given, |x| integers(x)),
            listed(&wanted, |x| integers(x)), integers(&relays), listed(&ready, |x| format!("\"{}\"", x.text()))
        );
        asked.hash = Some(sha256(text.as_bytes()));
        for (k, (given, wanted)) in given.into_iter().zip(wanted).enumerate() {
            let size = Frac::new(false, Nat::of(sizes[k]), Nat::of(1));
            asked.blocks.push(Block { size, given, wanted, allowed: allowed[job[k]].clone(), ready: ready[job[k]].clone() });
        }
        Ok(asked)
    }
}

// ------------------------------------------------------------------------------------- schedule

/// Liberties of schedules that a bound may exclude.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Liberty {
    StagesOverlap,
    SumsMeetAtSeveralServers,
    RoutesPassServers,
    SwitchesAdd,
    ServersRootUnequalParts,
    ServersRootFewerPieces,
    TransfersLeaveTheTrees,
}
use Liberty::*;

impl Liberty {
    /// In the order in which classes of schedules name them.
    const ALL: [Liberty; 7] = [
        ServersRootFewerPieces, ServersRootUnequalParts, SumsMeetAtSeveralServers, StagesOverlap,
        RoutesPassServers, SwitchesAdd, TransfersLeaveTheTrees,
    ];

    fn words(self) -> &'static str {
        match self {
            StagesOverlap => "stages overlap",
            SumsMeetAtSeveralServers => "sums meet at several servers",
            RoutesPassServers => "routes pass servers",
            SwitchesAdd => "switches add",
            ServersRootUnequalParts => "servers root unequal parts",
            ServersRootFewerPieces => "servers root fewer pieces",
            TransfersLeaveTheTrees => "transfers leave the trees",
        }
    }

    /// The description of schedules that do not take it.
    fn without(self, pieces: &[u128], trees: Option<&Trees>) -> String {
        match self {
            ServersRootFewerPieces => {
                let alike = pieces.iter().all(|x| *x == pieces[0]);
                let most = match pieces[0] {
                    _ if !alike => "the pieces claimed".into(),
                    1 => "a piece".into(),
                    count => format!("at least {count} pieces"),
                };
                format!("root {most} at each server")
            }
            ServersRootUnequalParts => "root equal parts at all servers".into(),
            SumsMeetAtSeveralServers => "sum each piece at one server".into(),
            StagesOverlap => "finish every sum before the first copy".into(),
            RoutesPassServers => "route through no other server".into(),
            SwitchesAdd => "add at servers alone".into(),
            TransfersLeaveTheTrees => {
                let shortest = trees.is_some_and(|trees| trees.before.is_empty());
                format!("keep to {}", if shortest { "shortest paths" } else { "the given trees" })
            }
        }
    }
}

struct Transfer {
    round: u64,
    piece: usize,
    source: usize,
    target: usize,
    copies: bool,
    links: Vec<usize>,
}

struct Plan {
    transfers: Vec<Transfer>,
    rounds: u64,
    liberties: BTreeSet<Liberty>,
    pieces: Vec<u128>,
    begin: Vec<f64>,
    size: Vec<Frac>,
    root: Vec<usize>,
}

impl Plan {
    fn new(data: &Json, net: &Network, asked: &Asked, adding: bool) -> Res<Plan> {
        let version = data.get("version")?.int()?;
        need(data.get("format")?.text()? == "gradweave-schedule" && (1..=3).contains(&version), "another format")?;
        let root = data.get("root")?.indices(net.size)?;
        let pieces = root.len();
        need(pieces > 0 && data.get("pieces")?.int()? == pieces as i128, "pieces: not as many as roots")?;
        need(root.iter().all(|r| net.is_server[*r]), "root: no server")?;
        let block = if asked.demand {
            let block = data.get("block")?.indices(asked.blocks.len())?;
            let covers = block.len() == pieces && block[0] == 0 && block[pieces - 1] + 1 == asked.blocks.len();
            need(covers && block.windows(2).all(|x| x[1] == x[0] || x[1] == x[0] + 1), "block: not each in turn")?;
            block
        } else {
            root.iter().map(|r| if asked.blocks.len() > 1 { net.rank[*r] } else { 0 }).collect()
        };
        let weight = match data.find("shares").filter(|x| **x != Json::Null) {
            Some(shares) => {
                let list = shares.get("numerators")?.list()?;
                let weight: Vec<u128> = list.iter().map(|x| x.below(1 << 63)).collect::<Res<_>>()?;
                let all = weight.iter().sum::<u128>();
                need(all > 0 && all as i128 == shares.get("denominator")?.int()?, "shares: another sum")?;
                need(weight.len() == pieces, "shares: not one for each piece")?;
                weight
            }
            None => vec![1; pieces],
        };
        let mut sums: HashMap<usize, u128> = HashMap::new();
        let of = |p: usize| if asked.demand { block[p] } else { 0 };
        (0..pieces).for_each(|p| *sums.entry(of(p)).or_default() += weight[p]);
        need(sums.values().all(|sum| *sum > 0), "shares: a block without any")?;
        let share: Vec<Frac> =
            (0..pieces).map(|p| Frac::new(false, Nat::of(weight[p]), Nat::of(sums[&of(p)]))).collect();

        let moved = data.get("transfers")?;
        let count = moved.get("round")?.list()?.len();
        let mut columns = vec![];
        for name in ["round", "piece", "source", "target", "op", "route"] {
            columns.push(moved.get(name)?.list()?);
        }
        need(columns.iter().all(|column| column.len() == count), "transfers: columns of different lengths")?;
        let mut transfers = vec![];
        let (mut passed, mut added) = (false, false);
        for k in 0..count {
            let round = columns[0][k].below(1 << 26)? as u64;
            let piece = columns[1][k].index(pieces)?;
            let (source, target) = (columns[2][k].index(net.size)?, columns[3][k].index(net.size)?);
            let copies = match columns[4][k].text()? {
                "copy" => true,
                "reduce" => false,
                _ => return Err("neither reduce nor copy".into()),
            };
            let route = columns[5][k].indices(net.size)?;
            need(route.len() > 1 && route[0] == source && route[route.len() - 1] == target, "a route's ends")?;
            need(route.iter().collect::<HashSet<_>>().len() == route.len(), "a route passes a node twice")?;
            let used: Option<Vec<usize>> = route.windows(2).map(|x| net.link.get(&(x[0], x[1])).copied()).collect();
            let links = used.ok_or("a route takes a link that is not there")?;
            let part = |node: &&usize| net.is_server[**node];
            let allowed = &asked.blocks[block[piece]].allowed;
            need(route.iter().filter(part).all(|node| allowed.contains(node)), "a server has no part in it")?;
            passed |= route[1..route.len() - 1].iter().any(|node| net.is_server[*node]);
            let ends = net.is_server[source] as usize + net.is_server[target] as usize;
            need(adding || ends == 2, "switches do not add")?;
            added |= ends < 2;
            transfers.push(Transfer { round, piece, source, target, copies, links });
        }
        transfers.sort_by_key(|one| one.round);
        let rounds = transfers.last().map_or(0, |one| one.round + 1);
        need(data.get("rounds")?.int()? == rounds as i128, "rounds: not the transfers'")?;

        // How often each server's contribution is in a node's sum of a piece: 0, 1, or 2 for more.
        let servers = net.servers.len();
        let mut held: HashMap<(usize, usize), Vec<u8>> = HashMap::new();
        let holds = |held: &HashMap<(usize, usize), Vec<u8>>, node: usize, piece: usize| {
            held.get(&(node, piece)).cloned().unwrap_or_else(|| {
                let mut own = vec![0; servers];
                if net.is_server[node] {
                    own[net.rank[node]] = 1;
                }
                own
            })
        };
        let full: Vec<Vec<u8>> = block
            .iter()
            .map(|b| {
                let mut row = vec![0; servers];
                asked.blocks[*b].given.iter().for_each(|s| row[net.rank[*s]] = 1);
                row
            })
            .collect();
        let mut complete: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); pieces];
        for p in 0..pieces {
            if let [only] = asked.blocks[block[p]].given[..] {
                complete[p].insert(only);
            }
        }
        for together in transfers.chunk_by(|x, y| x.round == y.round) {
            let mut load: HashMap<usize, u64> = HashMap::new();
            let mut writes: BTreeMap<(usize, usize), (bool, Vec<Vec<u8>>)> = BTreeMap::new();
            for one in together {
                one.links.iter().for_each(|k| *load.entry(*k).or_default() += 1);
                let cell = writes.entry((one.target, one.piece)).or_default();
                cell.0 |= one.copies;
                cell.1.push(holds(&held, one.source, one.piece));
            }
            need(load.iter().all(|(k, count)| *count <= net.room[*k]), "a link carries too much")?;
            for ((node, piece), (copied, sums)) in writes {
                need(!copied || sums.len() == 1, "a copy and more to one place")?;
                let mut row = if copied { vec![0; servers] } else { holds(&held, node, piece) };
                for sum in sums {
                    row.iter_mut().zip(sum).for_each(|(x, more)| *x = (*x + more).min(2));
                }
                if !copied && row == full[piece] {
                    complete[piece].insert(node);
                }
                held.insert((node, piece), row);
            }
        }
        for p in 0..pieces {
            for server in &asked.blocks[block[p]].wanted {
                need(holds(&held, *server, p) == full[p], "a server lacks contributions at the end, or has one twice")?;
            }
        }
        let last_sum = transfers.iter().filter(|x| !x.copies).map(|x| x.round).max();
        let first_copy = transfers.iter().filter(|x| x.copies).map(|x| x.round).min();
        let lone = |p: usize| complete[p].len() == 1 && (asked.demand || complete[p].contains(&root[p]));
        let mut rooted = vec![zero(); servers];
        (0..pieces).for_each(|p| rooted[net.rank[root[p]]] = rooted[net.rank[root[p]]].plus(&share[p]));
        let taken = [
            (StagesOverlap, last_sum.is_some() && first_copy.is_some_and(|first| first <= last_sum.unwrap())),
            (SumsMeetAtSeveralServers, !(0..pieces).all(lone)),
            (RoutesPassServers, passed),
            (SwitchesAdd, added),
            (ServersRootUnequalParts, rooted.iter().any(|x| *x != rooted[0])),
        ];
        let number = if asked.demand { asked.blocks.len() } else { servers };
        let mut counted = vec![0u128; number];
        (0..pieces).for_each(|p| counted[if asked.demand { block[p] } else { net.rank[root[p]] }] += 1);
        let size = |p: usize| if asked.demand { share[p].times(&asked.blocks[block[p]].size) } else { share[p].clone() };
        Ok(Plan {
            rounds,
            liberties: taken.into_iter().filter(|x| x.1).map(|x| x.0).collect(),
            pieces: counted,
            begin: block.iter().map(|b| asked.blocks[*b].ready.float()).collect(),
            size: (0..pieces).map(size).collect(),
            root,
            transfers,
        })
    }

    /// Its time in the event model, in floats: a transfer waits for its data and its links.
    fn seconds(&self, net: &Network, unit: f64, ready: &[f64]) -> f64 {
        let float = |values: &[Frac]| values.iter().map(Frac::float).collect::<Vec<f64>>();
        let (rate, delay, hold) = (float(&net.rate), float(&net.delay), float(&net.hold));
        let mut load: HashMap<(u64, usize), f64> = HashMap::new();
        for one in &self.transfers {
            one.links.iter().for_each(|k| *load.entry((one.round, *k)).or_default() += 1.0);
        }
        let least = |one: &Transfer| {
            one.links.iter().map(|k| rate[*k] / load[&(one.round, *k)]).fold(f64::INFINITY, f64::min)
        };
        let rates: Vec<f64> = self.transfers.iter().map(least).collect();
        let mut slowest = vec![f64::INFINITY; rate.len()];
        for (one, own) in self.transfers.iter().zip(&rates) {
            one.links.iter().for_each(|k| slowest[*k] = slowest[*k].min(*own));
        }
        let mut there: HashMap<(usize, usize), f64> = HashMap::new();
        let mut claims: Vec<Vec<(f64, f64)>> = vec![vec![]; rate.len()];
        let mut first = 0;
        for together in self.transfers.chunk_by(|x, y| x.round == y.round) {
            let mut ended = vec![];
            for (one, own) in together.iter().zip(&rates[first..]) {
                let data = *there.get(&(one.source, one.piece)).unwrap_or(&0.0);
                let since = if net.is_server[one.source] { ready[net.rank[one.source]] } else { ready[0] };
                let mut begin = data.max(since).max(self.begin[one.piece]);
                loop {
                    let mut next = f64::INFINITY;
                    for k in &one.links {
                        let open = || claims[*k].iter().filter(|claim| claim.0 > begin);
                        if open().map(|claim| claim.1).sum::<f64>() + own * (1.0 - 1e-9) > rate[*k] {
                            next = next.min(open().map(|claim| claim.0).fold(f64::INFINITY, f64::min));
                        }
                    }
                    if next == f64::INFINITY {
                        break;
                    }
                    begin = next;
                }
                let held = one.links.iter().map(|k| hold[*k]).fold(0.0, f64::max);
                let free = begin + held + self.size[one.piece].float() * unit / own;
                for k in &one.links {
                    claims[*k].push((free, *own));
                    claims[*k].sort_by(|x, y| x.partial_cmp(y).unwrap());
                    let most = 1 + (rate[*k] / slowest[*k] + 1e-9) as usize;
                    let spare = claims[*k].len().saturating_sub(most);
                    claims[*k].drain(..spare);
                }
                let end = free + one.links.iter().map(|k| delay[*k]).sum::<f64>();
                ended.push(((one.target, one.piece), end));
            }
            first += together.len();
            for (cell, end) in ended {
                let known = there.entry(cell).or_insert(0.0);
                *known = known.max(end);
            }
        }
        there.into_values().fold(0.0, f64::max)
    }
}

// ------------------------------------------------------------------------ messages without bytes

/// Minimum times of messages, and how many servers can have heard of how many by when.
struct Messages {
    hold: [HashMap<usize, Frac>; 2],
    ports: [HashMap<usize, Frac>; 2],
    far: HashMap<usize, Vec<Option<Frac>>>,
    /// By the longest hold on the way: with it, and over links that are held at most that long.
    along: Vec<(Frac, HashMap<usize, Vec<Option<Frac>>>)>,
    spread: Vec<Frac>,
}

impl Messages {
    fn new(net: &Network) -> Res<Messages> {
        let per_transfer = |k: usize| net.rate[k].per(&Frac::whole(net.room[k] as i128)).unwrap();
        let slowest = (0..net.ends.len()).map(per_transfer).min().ok_or("no links")?;
        let mut hold = [HashMap::new(), HashMap::new()];
        let mut ports = [HashMap::new(), HashMap::new()];
        for (k, (a, b)) in net.ends.iter().enumerate() {
            for (side, node) in [a, b].into_iter().enumerate() {
                let least = hold[side].entry(*node).or_insert_with(|| net.hold[k].clone());
                *least = net.hold[k].clone().min(least.clone());
                let sum = ports[side].entry(*node).or_insert_with(zero);
                *sum = sum.plus(&net.rate[k].per(&slowest)?);
            }
        }
        let far: HashMap<_, _> = net.servers.iter().map(|s| (*s, net.away(&[*s], false))).collect();
        let every: Vec<&Frac> = net.hold.iter().collect::<BTreeSet<_>>().into_iter().collect();
        // With more than four different holds, the others are rounded down to one of these.
        let levels: BTreeSet<&Frac> = (0..4).map(|k| every[(every.len() - 1) * k / 3]).collect();
        let counted = |k: usize| *levels.iter().filter(|x| ***x <= net.hold[k]).max().unwrap();
        let closed = total(net.delay.iter().chain(&net.hold)).plus(&Frac::whole(1)); // longer than any way
        let mut along = vec![];
        for level in &levels {
            let cost = |k: usize| if counted(k) <= *level { net.delay[k].clone() } else { closed.clone() };
            let way: Vec<Frac> = (0..net.ends.len()).map(cost).collect();
            let row = |s: &usize| (*s, net.least(&[*s], &way, false, &|_| true));
            along.push(((*level).clone(), net.servers.iter().map(row).collect()));
        }
        let mut near: Option<Frac> = None;
        for (a, row) in &far {
            for b in net.servers.iter().filter(|b| *b != a) {
                let away = row[*b].clone().ok_or("a server that is not reached")?;
                near = Some(near.map_or(away.clone(), |known: Frac| known.min(away)));
            }
        }
        // As if all were as near as any: a server that knows since t informs another one by its k-th message at
        // t + near + hold * max(1, k / most): the earliest times at which one more server can know.
        let near = near.unwrap();
        let least = net.hold.iter().min().unwrap();
        let most = net.servers.iter().flat_map(|s| [&ports[0][s], &ports[1][s]]).max().unwrap().clone();
        let after = |k: usize| {
            let waited = Frac::whole(k as i128).per(&most).unwrap().max(Frac::whole(1));
            near.plus(&least.times(&waited))
        };
        let mut spread = vec![zero()];
        let mut sent = vec![0usize];
        while spread.len() < net.servers.len() {
            let next = |x: usize| spread[x].plus(&after(sent[x] + 1));
            let sender = (0..spread.len()).min_by_key(|x| next(*x)).unwrap();
            let time = next(sender);
            sent[sender] += 1;
            spread.push(time);
            sent.push(0);
        }
        Ok(Messages { hold, ports, far, along, spread })
    }

    /// Minimum seconds from one server to another; the other way if not leaving.
    fn between(&self, x: usize, y: usize, leaving: bool) -> Frac {
        let (a, b) = if leaving { (x, y) } else { (y, x) };
        if a == b {
            return zero();
        }
        let held = self.hold[0][&a].clone().max(self.hold[1][&b].clone());
        let ends = self.far[&a][b].as_ref().unwrap().plus(&held);
        let along = self.along.iter().map(|(hold, far)| far[&a][b].as_ref().unwrap().plus(hold));
        ends.max(along.min().unwrap())
    }

    /// For each server, ascending: seconds to each of some others, or from them.
    fn reached(&self, net: &Network, some: &BTreeSet<usize>, leaving: bool) -> HashMap<usize, Vec<Frac>> {
        let row = |s: usize| {
            let mut times: Vec<Frac> = some.iter().map(|o| self.between(s, *o, leaving)).collect();
            times.sort();
            times
        };
        net.servers.iter().map(|s| (*s, row(*s))).collect()
    }

    /// How many of some servers one reaches before a time; not leaving, can have heard of.
    fn known(&self, time: &Frac, x: usize, some: &BTreeSet<usize>, leaving: bool, reached: &HashMap<usize, Vec<Frac>>) -> usize {
        let side = !leaving as usize;
        let (hold, ports) = (&self.hold[side][&x], &self.ports[side][&x]);
        let before = |times: &[Frac], time: &Frac| times.partition_point(|t| t < time);
        let near = before(&reached[&x], time);
        let mut left = vec![];
        for (s, times) in reached.iter().filter(|(s, _)| **s != x) {
            let away = if leaving { &self.far[&x][*s] } else { &self.far[s][x] };
            let rest = time.minus(hold).minus(away.as_ref().unwrap());
            if rest > times[0] {
                left.push((rest, times));
            }
        }
        let Some(latest) = left.iter().map(|(rest, _)| rest.clone()).max() else {
            return near.min(some.contains(&x) as usize);
        };
        let mut known = some.contains(&x) as usize;
        for k in 1..=some.len() {
            let waits = Frac::whole(k as i128).per(ports).unwrap().max(Frac::whole(1)).minus(&Frac::whole(1));
            let waited = hold.times(&waits);
            let mut most = 0;
            for (rest, times) in &left {
                let at = if leaving { rest.minus(&waited) } else { rest.clone().min(latest.minus(&waited)) };
                if at > times[0] {
                    most = most.max(before(&self.spread, &at).min(before(times, &at)));
                }
            }
            known += most;
            if known >= near || most == 0 {
                break;
            }
        }
        known.min(near)
    }
}

// ---------------------------------------------------------------------------------------- trees

/// Minimum cost of a tree from a root to all places: duals of sets that no free arc enters yet are
/// raised until an arc is free, and their sum is the minimum cost (Fulkerson 1974).
fn spanning(cost: &[Vec<Option<Frac>>], root: usize) -> Option<Frac> {
    let count = cost.len();
    let mut rest = cost.to_vec();
    let free = |x: &Option<Frac>| x.as_ref().is_some_and(|x| !x.positive());
    let behind = |rest: &Vec<Vec<Option<Frac>>>, node: usize| {
        let (mut found, mut left) = (vec![false; count], vec![node]);
        found[node] = true;
        while let Some(b) = left.pop() {
            for a in 0..count {
                if a != b && !found[a] && free(&rest[a][b]) {
                    found[a] = true;
                    left.push(a);
                }
            }
        }
        found
    };
    let mut sum = zero();
    for node in 0..count {
        loop {
            let mut set = behind(&rest, node);
            if set[root] {
                break;
            }
            // The smallest such set within: a set from which each member can be reached.
            let mut tried = 0;
            while tried < count {
                let smaller = if set[tried] { behind(&rest, tried) } else { set.clone() };
                if smaller == set {
                    tried += 1;
                } else {
                    (set, tried) = (smaller, 0);
                }
            }
            let entering = || (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
            let arcs: Vec<_> = entering().filter(|(a, b)| !set[*a] && set[*b] && rest[*a][*b].is_some()).collect();
            let raised = arcs.iter().map(|(a, b)| rest[*a][*b].clone().unwrap()).min()?;
            for (a, b) in arcs {
                rest[a][b] = rest[a][b].as_ref().map(|x| x.minus(&raised));
            }
            sum = sum.plus(&raised);
        }
    }
    Some(sum)
}

/// Minimum length that brings a block's contributions together, and the sum to all.
fn carrier(least: &HashMap<usize, Vec<Option<Frac>>>, block: &Block) -> Option<Frac> {
    let places: Vec<usize> = block.allowed.iter().copied().collect();
    let forth: Vec<Vec<_>> = places.iter().map(|a| places.iter().map(|b| least[a][*b].clone()).collect()).collect();
    let back: Vec<Vec<_>> = places.iter().map(|a| places.iter().map(|b| least[b][*a].clone()).collect()).collect();
    let (given, wanted) = (&block.given, &block.wanted);
    if *given == places && *wanted == places {
        return (0..places.len()).map(|r| Some(spanning(&forth, r)?.plus(&spanning(&back, r)?))).collect::<Option<Vec<_>>>()?.into_iter().min();
    }
    let both: BTreeSet<usize> = given.iter().chain(wanted).copied().collect();
    if both == block.allowed && (given.len() == 1 || wanted.len() == 1) {
        let (one, ways) = if given.len() == 1 { (given[0], &forth) } else { (wanted[0], &back) };
        return spanning(ways, places.binary_search(&one).unwrap());
    }
    let pairs = given.iter().flat_map(|a| wanted.iter().map(|b| least[a][*b].clone()));
    pairs.collect::<Option<Vec<_>>>()?.into_iter().max()
}

// ---------------------------------------------------------------------------------- certificates

const STAGES: [&str; 2] = ["reduce_scatter", "all_gather"];

struct Proof<'a> {
    net: &'a Network,
    asked: &'a Asked,
    unit: String,
    rounds: bool,
    bytes: Frac,
    ready: Vec<Frac>,
    pieces: Vec<u128>,
    amount: Vec<Frac>,
    since: Frac,
    trees: Option<Trees>,
    forbids: BTreeSet<Liberty>,
    least: Frac,
}

type Set = BTreeSet<usize>;

impl<'a> Proof<'a> {
    fn new(data: &Json, net: &'a Network, asked: &'a Asked) -> Res<Proof<'a>> {
        let format = data.get("format")?.text()? == "gradweave-certificate" && data.get("version")?.int()? == 1;
        need(format, "another format")?;
        need(data.get("network")?.text()? == net.hash, "it is of another network")?;
        let demand = data.find("demand").map(|x| x.text()).transpose()?;
        let claim = data.get("claim")?;
        let same = demand == asked.hash.as_deref() && claim.get("collective")?.text()? == asked.name;
        need(same, "it is of another collective, or demand")?;
        let unit = claim.get("unit")?.text()?.to_string();
        let rounds = unit == "rounds";
        need(rounds || unit == "seconds", "claim: another unit")?;
        let overlap = claim.find("overlap").is_some_and(Json::flag);
        let exact = |name: &str| claim.find(name).map_or(Ok(zero()), Json::exact);
        let (bytes, since) = (exact("bytes")?, exact("since_s")?);
        let count = net.servers.len();
        let number = if asked.demand { asked.blocks.len() } else { count };
        let ready = match claim.find("ready_at_s") {
            Some(times) => times.list()?.iter().map(Json::exact).collect::<Res<_>>()?,
            None => vec![zero(); count],
        };
        let pieces = match claim.find("pieces") {
            Some(pieces) => pieces.list()?.iter().map(|x| x.below(1 << 60)).collect::<Res<_>>()?,
            None => vec![1; number],
        };
        need(ready.len() == count && pieces.len() == number, "claim: not one for each")?;
        let each = bytes.per(&Frac::whole(count as i128))?;
        let amount = if rounds { pieces.iter().map(|x| Frac::whole(*x as i128)).collect() } else { vec![each; count] };
        let both = asked.name == "all_reduce" && rounds && !overlap;
        let mut forbids: BTreeSet<Liberty> = if both { [StagesOverlap, SumsMeetAtSeveralServers].into() } else { BTreeSet::new() };
        let trees = match claim.find("trees").filter(|x| **x != Json::Null) {
            Some(trees) => {
                need(rounds && STAGES.contains(&asked.name.as_str()), "trees: of rounds of one stage alone")?;
                forbids.insert(TransfersLeaveTheTrees);
                Some(Trees::new(trees, net, asked.name == STAGES[0])?)
            }
            None => None,
        };
        let mut proof =
            Proof { net, asked, unit, rounds, bytes, ready, pieces, amount, since, trees, forbids, least: zero() };
        let steps = data.get("proof")?.list()?;
        let stages: Vec<&str> = if both { STAGES.to_vec() } else { vec![&asked.name] };
        need(steps.len() == stages.len(), "proof: not of each stage")?;
        for (step, stage) in steps.iter().zip(stages) {
            need(step.get("stage")?.text()? == stage, "proof: not of each stage")?;
            let more = proof.step(step)?;
            proof.least = proof.least.plus(&more);
        }
        need(proof.least >= claim.get("least")?.exact()?, "it proves less than it claims")?;
        net.never().iter().for_each(|x| { proof.forbids.remove(x); });
        if let Some(unless) = claim.find("holds_unless") {
            let known = |text: &Json| -> Res<Liberty> {
                let text = text.text()?;
                Liberty::ALL.into_iter().find(|x| x.words() == text).ok_or("holds_unless: unknown".into())
            };
            let claimed: BTreeSet<Liberty> = unless.list()?.iter().map(known).collect::<Res<_>>()?;
            need(proof.forbids.is_subset(&claimed), "it holds for fewer schedules than it claims")?;
            proof.forbids = claimed;
        }
        Ok(proof)
    }

    /// The schedules that it holds for.
    fn holds_for(&self) -> String {
        let named = Liberty::ALL.into_iter().filter(|x| self.forbids.contains(x));
        let mut words: Vec<String> = named.map(|x| x.without(&self.pieces, self.trees.as_ref())).collect();
        match (words.pop(), words.is_empty()) {
            (None, _) => "every schedule".into(),
            (Some(last), true) => format!("schedules that {last}"),
            (Some(last), false) => format!("schedules that {} and {last}", words.join(", ")),
        }
    }

    fn step(&mut self, step: &Json) -> Res<Frac> {
        let kind = step.get("kind")?.text()?;
        let of = if self.asked.demand { "demand" } else { &self.unit };
        match (of, kind) {
            ("rounds" | "seconds", "cut") => self.cut(step),
            ("rounds" | "seconds", "groups") => self.groups(step),
            ("rounds", "depth") => self.depth(step),
            ("rounds", "growth") => self.growth(step),
            ("rounds", "late_entry") => self.late_entry(step),
            ("rounds", "closing_cut") => self.closing_cut(step),
            ("rounds", "load") => self.load(step),
            ("rounds", "refutation") => self.refutation(step),
            ("seconds" | "demand", "lengths") => self.lengths(step),
            ("seconds" | "demand", "reach") => self.reach(step),
            ("seconds", "crossings") => self.crossings(step),
            ("seconds", "slots") => self.slots(step),
            ("seconds", "root") => self.root(),
            ("seconds", "relay") => self.relay(step),
            ("seconds", "meeting") => self.meeting(step),
            _ => Err("not checked: of an unknown kind".into()),
        }
    }

    fn everyone(&self) -> Set {
        self.net.servers.iter().copied().collect()
    }

    /// The nodes of a set, with some servers inside and some outside.
    fn inside(&self, step: &Json, servers: &str, switches: &str) -> Res<Set> {
        let net = self.net;
        let (some, others) = (step.get(servers)?.indices(net.size)?, step.get(switches)?.indices(net.size)?);
        let kinds = some.iter().all(|x| net.is_server[*x]) && !others.iter().any(|x| net.is_server[*x]);
        let count = some.iter().collect::<HashSet<_>>().len();
        need(kinds && 0 < count && count < net.servers.len(), "a set: other nodes, or all servers")?;
        Ok(some.into_iter().chain(others).collect())
    }

    fn server(&self, step: &Json, name: &str) -> Res<usize> {
        let node = step.get(name)?.index(self.net.size)?;
        need(self.net.is_server[node], "not a server")?;
        Ok(node)
    }

    /// The amount that some servers root.
    fn sum<'b>(&mut self, servers: impl IntoIterator<Item = &'b usize>) -> Frac {
        if self.rounds {
            self.forbids.insert(ServersRootFewerPieces);
        }
        total(servers.into_iter().map(|s| &self.amount[self.net.rank[*s]]))
    }

    fn room(&self, links: impl IntoIterator<Item = usize>) -> i128 {
        links.into_iter().map(|k| self.net.room[k] as i128).sum()
    }

    fn crossing(&self, amount: &Frac, links: Vec<usize>, since: Frac) -> Res<Frac> {
        if self.rounds {
            return Ok(amount.per(&Frac::whole(self.room(links)))?.ceiling());
        }
        let idle = self.net.idle(&self.net.servers, &self.net.servers, &|_| true);
        let charge = |k: usize| Some((idle[k].clone()?.max(since.clone()), self.net.rate[k].clone()));
        let charges = links.into_iter().map(charge).collect::<Option<_>>().ok_or("a link without use")?;
        Ok(until(amount, charges))
    }

    fn cut(&mut self, step: &Json) -> Res<Frac> {
        let (nodes, leaving, stage) = (self.inside(step, "servers", "switches")?, step.get("leaving")?.flag(), step.get("stage")?.text()?);
        let out = |(_, (a, b)): &(usize, &(usize, usize))| nodes.contains(a) == leaving && nodes.contains(b) != leaving;
        let links: Vec<usize> = self.net.ends.iter().enumerate().filter(out).map(|x| x.0).collect();
        let everyone = self.everyone();
        let within: Set = everyone.intersection(&nodes).copied().collect();
        let rest: Set = everyone.difference(&nodes).copied().collect();
        if stage == "all_reduce" {
            let late = if leaving { within } else { rest };
            let since = late.iter().map(|s| self.ready[self.net.rank[*s]].clone()).max().unwrap();
            let amount = self.sum(&everyone);
            return self.crossing(&amount, links, since);
        }
        if !self.rounds {
            self.forbids.insert(ServersRootUnequalParts);
        }
        let rooted = if leaving == (stage == "all_gather") { within } else { rest };
        let amount = self.sum(&rooted);
        self.crossing(&amount, links, zero())
    }

    fn groups(&mut self, step: &Json) -> Res<Frac> {
        let both = step.get("stage")?.text()? == "all_reduce";
        let mut of: HashMap<usize, usize> = HashMap::new();
        for (g, nodes) in step.get("groups")?.list()?.iter().enumerate() {
            for node in nodes.indices(self.net.size)? {
                need(of.insert(node, g).is_none(), "groups: a node twice")?;
            }
        }
        let with_servers: HashSet<_> = self.net.servers.iter().map(|s| of.get(s)).collect();
        let all: HashSet<_> = of.values().map(Some).collect();
        need(with_servers == all, "groups: not of all servers")?;
        self.forbids.insert(SwitchesAdd);
        if !self.rounds && !both {
            self.forbids.insert(ServersRootUnequalParts);
        }
        let ends = self.net.turned(!step.get("leaving")?.flag());
        let out = |(_, (a, b)): &(usize, &(usize, usize))| of.contains_key(a) && of.get(a) != of.get(b);
        let links = ends.iter().enumerate().filter(out).map(|x| x.0).collect();
        let times = Frac::whole((all.len() as i128 - 1) * if both { 2 } else { 1 });
        let everyone = self.everyone();
        let amount = times.times(&self.sum(&everyone));
        self.crossing(&amount, links, zero())
    }

    fn depth(&mut self, step: &Json) -> Res<Frac> {
        self.forbids.insert(RoutesPassServers);
        let (a, b) = (self.server(step, "source")?, self.server(step, "target")?);
        let rooted = step.get("stage")?.text()? == "all_reduce" || self.sum([&a]).positive() && self.sum([&b]).positive();
        need(a != b && rooted, "depth: not two servers with pieces")?;
        Ok(Frac::whole(self.net.hops(&[a], false)[b]))
    }

    /// Rounds until one server's contribution can be at all, or all at one: in a round, a server that has it
    /// informs at most as many others as links leave it, or a sum takes in that many.
    fn growth(&mut self, step: &Json) -> Res<Frac> {
        let (leaving, adding) = (step.get("leaving")?.flag(), step.get("switches")?.flag());
        let other = if leaving { "reduce_scatter" } else { "all_gather" };
        need(step.get("stage")?.text()? != other, "growth: the other way")?;
        if !adding {
            self.forbids.insert(SwitchesAdd);
        }
        let net = self.net;
        let mut room = vec![0u128; net.size];
        for ((source, target), count) in net.ends.iter().zip(&net.room) {
            room[if leaving { *source } else { *target }] += *count as u128;
        }
        let most = (0..net.size).filter(|x| adding || net.is_server[*x]).map(|x| room[x]).max().unwrap_or(0);
        need(most > 0, "growth: no links")?;
        let (mut there, mut rounds) = (1u128, 0);
        while there < net.servers.len() as u128 {
            (there, rounds) = (there * (most + 1), rounds + 1);
        }
        Ok(Frac::whole(rounds))
    }

    /// Whether time is reversed, as in a reduce-scatter.
    fn reversed(&mut self, step: &Json) -> Res<bool> {
        let stage = step.get("stage")?.text()?;
        need(STAGES.contains(&stage), "of one stage alone")?;
        self.forbids.extend([RoutesPassServers, SwitchesAdd]);
        Ok(stage == STAGES[0])
    }

    fn late_entry(&mut self, step: &Json) -> Res<Frac> {
        let back = self.reversed(step)?;
        let (net, inside) = (self.net, self.inside(step, "servers", "switches")?);
        let first = step.get("first_rounds")?.index(net.size + 8)? as i128;
        let last = step.get("last_rounds")?.index(net.size + 8)? as i128;
        let members: Vec<usize> = self.everyone().intersection(&inside).copied().collect();
        let outside: Vec<usize> = self.everyone().difference(&inside).copied().collect();
        let away = net.hops(&members, !back);
        let far = net.hops(&outside, back);
        let arcs: Vec<(usize, usize, i128)> =
            net.turned(back).into_iter().zip(&net.room).map(|((a, b), room)| (a, b, *room as i128)).collect();
        self.forbids.insert(ServersRootFewerPieces);
        let count = |servers: Vec<&usize>| servers.iter().map(|s| self.pieces[net.rank[**s]] as i128).sum::<i128>();
        let mut left = count(outside.iter().filter(|s| away[**s] > first).collect());
        if last > 0 {
            left -= self.late(step, &members, &arcs, &far, last, back)?;
        }
        let room: i128 = arcs.iter().filter(|(a, b, _)| !inside.contains(a) && inside.contains(b)).map(|x| x.2).sum();
        if left <= 0 {
            return Ok(zero());
        }
        Ok(Frac::whole(left).per(&Frac::whole(room))?.ceiling().plus(&Frac::whole(first + last)))
    }

    /// Pieces that can enter in the last rounds and still be delivered to all servers of a set.
    fn late(&self, step: &Json, members: &[usize], arcs: &[(usize, usize, i128)], far: &[i128], last: i128, back: bool) -> Res<i128> {
        let nodes = self.inside(step, "reach", "reach_switches")?;
        let reach: Vec<usize> = self.everyone().intersection(&nodes).copied().collect();
        need(reach.iter().all(|x| members.contains(x)), "late_entry: reach is not inside")?;
        let into = |x: usize| arcs.iter().filter(|arc| arc.1 == x).map(|arc| arc.2).sum::<i128>();
        let out = |x: usize| arcs.iter().filter(|arc| arc.0 == x).map(|arc| arc.2).sum::<i128>();
        let across: i128 = arcs.iter().filter(|(a, b, _)| !nodes.contains(a) && nodes.contains(b)).map(|x| x.2).sum();
        let around: Vec<usize> = self.everyone().difference(&nodes).copied().collect();
        let depth = self.net.hops(&around, back);
        let takes: Vec<i128> = reach.iter().map(|x| into(*x)).collect();
        let gives: Vec<i128> = reach.iter().map(|x| out(*x)).collect();
        let deep: Vec<i128> = reach.iter().map(|x| depth[*x]).collect();
        let by_distance = reach.iter().zip(&takes).map(|(x, takes)| (last - far[*x] + 1).max(0) * takes).min().unwrap();
        let rounds = last + 1 - reach.iter().map(|x| far[*x]).min().unwrap();
        let (mut late, largest) = (by_distance, *gives.iter().max().unwrap());
        loop {
            let mut delivered = 0i128;
            for k in 1..=rounds {
                let below: i128 = (0..reach.len()).filter(|x| deep[*x] < k).map(|x| gives[x]).sum();
                let taken: i128 = (0..reach.len()).filter(|x| deep[*x] <= k).map(|x| takes[x].min(late)).sum();
                delivered += taken.min(across + below.min(delivered * largest));
            }
            if late == 0 || delivered >= late * reach.len() as i128 {
                return Ok(late);
            }
            late = delivered / reach.len() as i128;
        }
    }

    fn closing_cut(&mut self, step: &Json) -> Res<Frac> {
        let back = self.reversed(step)?;
        let net = self.net;
        let mut sets: Vec<Set> = vec![];
        for servers in step.get("servers")?.list()? {
            let set: Set = servers.indices(net.size)?.into_iter().collect();
            let proper = !set.is_empty() && set.len() < net.servers.len() && set.iter().all(|x| net.is_server[*x]);
            need(proper, "a set: other nodes, or all servers")?;
            sets.push(set);
        }
        let switches: Res<Vec<Vec<usize>>> = step.get("switches")?.list()?.iter().map(|x| x.indices(net.size)).collect();
        let switches = switches?;
        need(sets.len() == switches.len() + 1, "closing_cut: not a set for each round")?;
        let nested = sets.windows(2).all(|pair| pair[1].is_subset(&pair[0]));
        need(nested && sets[sets.len() - 1].contains(&self.server(step, "target")?), "closing_cut: sets are not nested")?;
        self.forbids.insert(ServersRootFewerPieces);
        let mut room = 0i128;
        for (pair, through) in sets.windows(2).zip(&switches) {
            for (k, (a, b)) in net.turned(back).into_iter().enumerate() {
                let starts_out = if net.is_server[a] { !pair[0].contains(&a) } else { !through.contains(&a) };
                let ends_in = if net.is_server[b] { pair[1].contains(&b) } else { through.contains(&b) };
                room += if starts_out && ends_in { net.room[k] as i128 } else { 0 };
            }
        }
        let outside = self.everyone().difference(&sets[0]).map(|s| self.pieces[net.rank[*s]] as i128).sum::<i128>();
        Ok(Frac::whole(if outside > room { switches.len() as i128 + 1 } else { 0 }))
    }

    /// Transfers of given trees over one link, each to a server from the server before it.
    fn load(&mut self, step: &Json) -> Res<Frac> {
        let net = self.net;
        let trees = self.trees.as_ref().filter(|trees| !trees.before.is_empty()).ok_or("load: of given trees alone")?;
        let link = (step.get("source")?.index(net.size)?, step.get("target")?.index(net.size)?);
        let room = net.turned(trees.back).iter().position(|ends| *ends == link).map(|k| net.room[k]).ok_or("load: no such link")?;
        let mut load = 0i128;
        for (rank, root) in net.servers.iter().enumerate() {
            for server in net.servers.iter().filter(|s| *s != root) {
                let (mut node, mut crossed, mut steps) = (*server, false, 0);
                while steps == 0 || !net.is_server[node] {
                    let before = trees.before[rank][node].ok_or("load: a tree is none")?;
                    crossed |= (before, node) == link;
                    (node, steps) = (before, steps + 1);
                    need(steps < net.size, "load: a tree is none")?;
                }
                load += if crossed { self.pieces[rank] as i128 } else { 0 };
            }
        }
        self.forbids.extend([SwitchesAdd, ServersRootFewerPieces]);
        Ok(Frac::whole(load).per(&Frac::whole(room as i128))?.ceiling())
    }

    /// A formula that every schedule of this few rounds satisfies, and a proof that it has no solution.
    fn refutation(&mut self, step: &Json) -> Res<Frac> {
        let back = self.reversed(step)?;
        self.forbids.insert(ServersRootFewerPieces);
        let rounds = step.get("rounds")?.index(1 << 16)?;
        let lines = proof_lines(step.get("lrat_xz")?.text()?, step.get("sha256")?.text()?)?;
        let formula = Formula::new(self.net, back, rounds, &self.pieces, self.trees.as_ref(), step.get("counters")?)?;
        derived(formula.clauses, &lines)?;
        Ok(Frac::whole(rounds as i128 + 1))
    }

    fn lengths(&mut self, step: &Json) -> Res<Frac> {
        let net = self.net;
        let cost: Res<Vec<Frac>> =
            step.get("lengths")?.list()?.iter().map(|x| Ok(Frac::whole(x.below(1 << 64)? as i128))).collect();
        let cost = cost?;
        need(cost.len() == net.ends.len(), "lengths: not one for each link direction")?;
        let late = |block: &&(usize, &Block)| block.1.ready >= self.since;
        let every: Vec<(usize, &Block)> = self.asked.blocks.iter().enumerate().collect();
        let blocks: Vec<&(usize, &Block)> = every.iter().filter(late).collect();
        need(!blocks.is_empty(), "lengths: of no block")?;
        self.forbids.extend([SwitchesAdd, RoutesPassServers]);
        if blocks.iter().any(|(_, block)| block.given.len() > 1 && block.wanted.len() > 1) {
            self.forbids.insert(SumsMeetAtSeveralServers);
        }
        if STAGES.contains(&self.asked.name.as_str()) {
            self.forbids.insert(ServersRootUnequalParts);
        } else if self.rounds {
            self.forbids.insert(ServersRootFewerPieces);
        }
        let mut idle: Vec<Option<Frac>> = vec![None; cost.len()];
        let mut used = zero();
        let groups: BTreeSet<&BTreeSet<usize>> = blocks.iter().map(|(_, block)| &block.allowed).collect();
        for allowed in groups {
            let through = |node: usize| !net.is_server[node] || allowed.contains(&node);
            let least: HashMap<usize, Vec<Option<Frac>>> =
                allowed.iter().map(|s| (*s, net.least(&[*s], &cost, false, &through))).collect();
            let some: Vec<_> = blocks.iter().filter(|(_, block)| block.allowed == *allowed).collect();
            let given: Set = some.iter().flat_map(|(_, block)| block.given.iter().copied()).collect();
            let wanted: Set = some.iter().flat_map(|(_, block)| block.wanted.iter().copied()).collect();
            let (given, wanted): (Vec<_>, Vec<_>) = (given.into_iter().collect(), wanted.into_iter().collect());
            for (known, now) in idle.iter_mut().zip(net.idle(&given, &wanted, &through)) {
                *known = match (known.take(), now) {
                    (Some(x), Some(y)) => Some(x.min(y)),
                    (x, y) => x.or(y),
                };
            }
            let mut known: HashMap<(&[usize], &[usize]), Frac> = HashMap::new();
            for (number, block) in some {
                let key = (&block.given[..], &block.wanted[..]);
                if !known.contains_key(&key) {
                    known.insert(key, carrier(&least, block).ok_or("a block that cannot be carried")?);
                }
                let size = if self.rounds {
                    Frac::whole(self.pieces[*number] as i128)
                } else if self.asked.demand {
                    block.size.clone()
                } else {
                    block.size.times(&self.bytes)
                };
                used = used.plus(&known[&key].times(&size));
            }
        }
        if self.rounds {
            let offered = total(&cost.iter().zip(&net.room).map(|(c, room)| c.times(&Frac::whole(*room as i128))).collect::<Vec<_>>());
            return Ok(used.per(&offered)?.ceiling());
        }
        let charges = idle.into_iter().enumerate().filter_map(|(k, x)| Some((x?, cost[k].times(&net.rate[k])))).collect();
        Ok(self.since.plus(&until(&used, charges)))
    }

    fn crossings(&mut self, step: &Json) -> Res<Frac> {
        need(self.asked.name == "all_reduce", "crossings: of an all-reduce alone")?;
        self.forbids.extend([SumsMeetAtSeveralServers, SwitchesAdd]);
        let net = self.net;
        let stage = |x: &Json| -> Res<usize> {
            let name = x.get("stage")?.text()?;
            STAGES.iter().position(|stage| *stage == name).ok_or("of one stage alone".into())
        };
        let last = self.ready.iter().max().unwrap().clone();
        let mut toll = [vec![0i128; net.size], vec![0i128; net.size]];
        for x in step.get("tolls")?.list()? {
            let (price, switch) = (x.get("price")?.int()?, x.get("switch")?.index(net.size)?);
            need(price.abs() < 1 << 64 && !net.is_server[switch], "a toll")?;
            toll[stage(x)?][switch] += price;
        }
        let mut paid = vec![0i128; net.servers.len()];
        let mut sets: Vec<(usize, Set, Frac, i128)> = vec![];
        for x in step.get("sets")?.list()? {
            let (nodes, since) = (self.inside(x, "servers", "switches")?, x.get("since_s")?.exact()?);
            let (copies, price) = (stage(x)?, x.get("price")?.below(1 << 64)? as i128);
            let outside = self.everyone().difference(&nodes).map(|s| self.ready[net.rank[*s]].clone()).max().unwrap();
            if since <= *(if copies == 1 { &last } else { &outside }) {
                nodes.iter().filter(|x| net.is_server[**x]).for_each(|x| paid[net.rank[*x]] += price);
            }
            sets.push((copies, nodes, since, price));
        }
        let mut times: Vec<Frac> = sets.iter().map(|x| x.2.clone()).chain([zero(), last.clone()]).collect();
        times.sort();
        times.dedup();
        let idle = net.idle(&net.servers, &net.servers, &|_| true);
        let mut charges = vec![];
        for (k, (a, b)) in net.ends.iter().enumerate() {
            let mut before = 0i128;
            for time in &times {
                let mut most = 0i128;
                for copies in 0..2 {
                    if copies == 1 && *time < last {
                        continue;
                    }
                    let (near, away) = if copies == 1 { (a, b) } else { (b, a) };
                    let charged = |x: &&(usize, Set, Frac, i128)| {
                        x.0 == copies && x.2 <= *time && x.1.contains(near) && !x.1.contains(away)
                    };
                    let sum: i128 = sets.iter().filter(charged).map(|x| x.3).sum();
                    most = most.max(sum + toll[copies][*a] - toll[copies][*b]);
                }
                let rate = net.rate[k].times(&Frac::whole(most - before));
                charges.push((idle[k].clone().ok_or("a link without use")?.max(time.clone()), rate));
                before = most;
            }
        }
        let due = self.bytes.times(&Frac::whole(*paid.iter().min().unwrap()));
        Ok(until(&due, charges))
    }

    fn reach(&mut self, step: &Json) -> Res<Frac> {
        let (net, x, leaving) = (self.net, self.server(step, "server")?, step.get("leaving")?.flag());
        need(!self.rounds, "reach: in rounds")?;
        let block = &self.asked.blocks[step.get("block")?.index(self.asked.blocks.len())?];
        let (own, others) = if leaving { (&block.given, &block.wanted) } else { (&block.wanted, &block.given) };
        need(own.contains(&x) && *others != [x], "reach: nothing goes that way")?;
        if STAGES.contains(&self.asked.name.as_str()) {
            self.forbids.insert(ServersRootUnequalParts);
        }
        let size = if self.asked.demand { block.size.clone() } else { block.size.times(&self.bytes) };
        let ends = net.turned(!leaving);
        let links: Vec<usize> = (0..ends.len()).filter(|k| ends[*k].0 == x).collect();
        let rates: Vec<Frac> = links.iter().map(|k| net.rate[*k].clone()).collect();
        let taken = size.per(&total(&rates))?;
        let hold = links.iter().map(|k| net.hold[*k].clone()).min().ok_or("no links")?;
        let away = net.away(&[x], !leaving);
        let (time, beyond) = (step.get("seconds")?.exact()?, step.get("beyond_s")?.exact()?);
        if time.positive() {
            self.forbids.insert(SwitchesAdd);
            let messages = net.messages()?;
            let far = |s: &&usize| messages.between(x, **s, leaving) >= beyond;
            let some: Set = others.iter().filter(far).copied().collect();
            need(!some.is_empty(), "reach: no servers")?;
            let reached = messages.reached(net, &some, leaving);
            need(messages.known(&time, x, &some, leaving, &reached) < some.len(), "reach: there is time enough")?;
        }
        let own_ready = leaving && self.asked.name == "all_reduce";
        let ready = if own_ready { &self.ready[net.rank[x]] } else { &block.ready };
        let far = others.iter().map(|s| away[*s].clone().ok_or("a server that is not reached")).collect::<Result<Vec<_>, _>>()?;
        let by_messages = time.plus(&taken.minus(&hold).max(zero()));
        let by_bytes = hold.plus(&taken).plus(far.iter().max().unwrap());
        Ok(ready.plus(&by_messages.max(by_bytes)))
    }

    fn root(&mut self) -> Res<Frac> {
        let both_stages = self.asked.name == "all_reduce";
        if both_stages {
            self.forbids.extend([SumsMeetAtSeveralServers, SwitchesAdd]);
        }
        let ways: Vec<bool> =
            [true, false].into_iter().filter(|back| both_stages || (self.asked.name == STAGES[0]) == *back).collect();
        let farthest = |r: usize, back: bool| {
            let away = self.net.away(&[r], back);
            self.net.servers.iter().map(|s| away[*s].clone()).collect::<Option<Vec<_>>>()?.into_iter().max()
        };
        let both = |r: &usize| {
            let times = ways.iter().map(|back| farthest(*r, *back)).collect::<Option<Vec<_>>>()?;
            Some(total(&times))
        };
        let sums: Option<Vec<Frac>> = self.net.servers.iter().map(both).collect();
        let least = sums.ok_or("a server that is not reached")?.into_iter().min().unwrap();
        let hold = self.net.hold.iter().min().unwrap();
        Ok(total(&vec![hold.clone(); ways.len()]).plus(&least))
    }

    fn relay(&mut self, step: &Json) -> Res<Frac> {
        need(self.asked.name == "all_reduce" && !self.rounds, "relay: of an all-reduce alone")?;
        self.forbids.insert(SwitchesAdd);
        let (net, x, messages) = (self.net, self.server(step, "server")?, self.net.messages()?);
        let m = |a: usize, b: usize| messages.between(a, b, true);
        let rooms = |leaving: bool| {
            let own = |k: &usize| if leaving { net.ends[*k].0 == x } else { net.ends[*k].1 == x };
            self.room((0..net.ends.len()).filter(own))
        };
        // The minimum time in which b hears of a by two messages in a row, or after a has heard of another.
        let two = |a: usize, b: usize| {
            let between = net.servers.iter().filter(|c| **c != a && **c != b).map(|c| m(a, *c).plus(&m(*c, b)));
            let after = net.servers.iter().filter(|c| **c != a).map(|c| m(*c, a).plus(&m(a, b)));
            between.chain(after).min().unwrap()
        };
        let others = || net.servers.iter().filter(|b| **b != x);
        let mut rows: Vec<Frac> = others().map(|b| two(x, *b).min(two(*b, x))).collect();
        rows.sort();
        rows.reverse();
        rows.push(zero());
        let at_once = (rooms(true).min(rooms(false)) as usize).min(rows.len() - 1);
        Ok(if rows.len() > 2 { rows[at_once].clone() } else { zero() })
    }

    fn meeting(&mut self, step: &Json) -> Res<Frac> {
        let (net, everyone) = (self.net, self.everyone());
        need(self.asked.name == "all_reduce" && everyone.len() > 2 && !self.rounds, "meeting: of an all-reduce alone")?;
        self.forbids.insert(SwitchesAdd);
        let messages = net.messages()?;
        let m = |a: usize, b: usize| messages.between(a, b, true);
        let time = step.get("seconds")?.exact()?;
        let beyond = step.get("beyond_s")?.list()?;
        need(beyond.len() == everyone.len(), "meeting: not one for each")?;
        let mut counted: HashMap<(Frac, usize, Set), usize> = HashMap::new();
        let mut tables: HashMap<Set, HashMap<usize, Vec<Frac>>> = HashMap::new();
        for (x, beyond) in net.servers.iter().copied().zip(beyond) {
            let mut sets = vec![everyone.clone()];
            for text in beyond.list()? {
                let least = text.exact()?;
                sets.push(everyone.iter().filter(|s| m(**s, x) >= least).copied().collect());
            }
            need(sets.iter().all(|some| !some.is_empty()), "meeting: a set is empty")?;
            let mut known = |time: &Frac, at: usize, some: &Set| {
                let key = (time.clone(), at, some.clone());
                if let Some(count) = counted.get(&key) {
                    return *count;
                }
                let table = tables.entry(some.clone()).or_insert_with(|| messages.reached(net, some, false));
                let count = messages.known(time, at, some, false, table);
                counted.insert(key, count);
                count
            };
            let others: Vec<usize> = everyone.iter().copied().filter(|a| *a != x).collect();
            let onward = others.iter().map(|b| m(x, *b)).min().unwrap();
            let begun = time.minus(&onward);
            // Whether x can have the whole sum in time to send it on.
            need(sets.iter().any(|some| known(&begun, x, some) < some.len()), "meeting: a sum can be sent on")?;
            // Whether x and those from which it receives in a round can have all contributions together.
            let end = |a: usize| if a == x { begun.clone() } else { time.minus(&m(a, x)) };
            let near: HashMap<usize, Set> = everyone
                .iter()
                .map(|a| (*a, everyone.iter().filter(|s| m(**s, *a) < end(*a)).copied().collect()))
                .collect();
            let room = self.room((0..net.ends.len()).filter(|k| net.ends[*k].1 == x));
            let partners = (room as usize).min(others.len());
            let mut candidates: Vec<Vec<usize>> = if partners == 1 {
                others.iter().map(|a| vec![*a]).filter(|a| near[&a[0]].union(&near[&x]).count() == everyone.len()).collect()
            } else if near.values().flatten().collect::<HashSet<_>>().len() == everyone.len() {
                vec![others.clone()]
            } else {
                vec![]
            };
            for some in &sets {
                let own = known(&begun, x, some);
                candidates.retain(|group| {
                    let mut counts: Vec<usize> = group.iter().map(|a| known(&end(*a), *a, some)).collect();
                    counts.sort();
                    own + counts.iter().rev().take(partners).sum::<usize>() >= some.len()
                });
            }
            need(candidates.is_empty(), "meeting: parts can be exchanged")?;
        }
        Ok(time)
    }

    fn slots(&mut self, step: &Json) -> Res<Frac> {
        let net = self.net;
        let (count, length) = (step.get("slots")?.index(1001)?, step.get("length_s")?.exact()?);
        need(count > 0 && length.positive() && !self.rounds, "slots: none")?;
        let both = self.asked.name == "all_reduce";
        let stages: Vec<bool> = if both { vec![false, true] } else { vec![!self.reversed(step)?] };
        self.forbids.extend([SumsMeetAtSeveralServers, SwitchesAdd, RoutesPassServers]);
        if !both {
            self.forbids.insert(ServersRootUnequalParts);
        }
        let routed = net.least(&net.servers, &net.delay, false, &|node| !net.is_server[node]);
        let mut late = vec![0usize; net.ends.len()];
        for (k, (a, b)) in net.ends.iter().enumerate() {
            if net.is_server[*b] {
                let since = routed[*a].clone().ok_or("a link without use")?;
                let slots = total([&since, &net.delay[k], &net.hold[k]]).times(&Frac::whole(count as i128)).per(&length)?.floor();
                late[k] = if slots.bits() > 20 { count } else { count.min(slots.float() as usize) };
            }
        }
        let row = |x: &Json, size: usize| -> Res<Vec<i128>> {
            let row: Vec<i128> = x.list()?.iter().map(Json::int).collect::<Res<_>>()?;
            need(row.len() == size && row[..size - 1].iter().all(|x| *x >= 0), "slots: a row")?;
            need(row[size - 1].abs() < 1 << 64, "slots: a price")?;
            Ok(row)
        };
        let mut price: HashMap<(i128, i128, i128, i128), i128> = HashMap::new();
        let mut sums: HashMap<(i128, i128, i128), i128> = HashMap::new();
        let mut toll: HashMap<(i128, i128, i128), i128> = HashMap::new();
        for x in step.get("prices")?.list()? {
            let x = row(x, 5)?;
            need(x[4] >= 0, "slots: a price")?;
            *price.entry((x[0], x[1], x[2], x[3])).or_default() += x[4];
            *sums.entry((x[0], x[1], x[2])).or_default() += x[4];
        }
        for x in step.get("tolls")?.list()? {
            let x = row(x, 4)?;
            need(x[2] < net.size as i128 && !net.is_server[x[2] as usize], "slots: a toll")?;
            *toll.entry((x[0], x[1], x[2])).or_default() += x[3];
        }
        let n = net.servers.len();
        let mut dearest = vec![vec![0i128; net.ends.len()]; count];
        let mut paid: Vec<Vec<Option<i128>>> = vec![vec![Some(0); n]; count];
        for (s, back) in stages.iter().enumerate() {
            let at = |key: usize, node: usize| *toll.get(&(s as i128, key as i128, node as i128)).unwrap_or(&0);
            let arcs = net.turned(*back);
            for (k, (a, b)) in arcs.iter().enumerate() {
                for t in 0..count.saturating_sub(late[k]) {
                    let charged = *sums.get(&(s as i128, t as i128, k as i128)).unwrap_or(&0) + at(t + late[k], *b) - at(t, *a);
                    let slot = if *back { count - 1 - late[k] - t } else { t };
                    dearest[slot][k] = dearest[slot][k].max(charged);
                }
            }
            for server in &net.servers {
                // A search through time for the cheapest way of one server's contribution to each place.
                let mut least: Vec<Vec<Option<i128>>> = vec![vec![None; net.size]; count];
                least[0][*server] = Some(0);
                let lower = |known: &mut Option<i128>, cost: i128| {
                    let better = known.is_none_or(|x| cost < x);
                    if better {
                        *known = Some(cost);
                    }
                    better
                };
                for t in 0..count {
                    if t > 0 {
                        for x in &net.servers {
                            if let Some(cost) = least[t - 1][*x] {
                                lower(&mut least[t][*x], cost);
                            }
                        }
                    }
                    let cost = |k: usize| *price.get(&(s as i128, t as i128, k as i128, *server as i128)).unwrap_or(&0);
                    let mut changed = true;
                    while changed {
                        changed = false;
                        for (k, (a, b)) in arcs.iter().enumerate().filter(|x| late[x.0] == 0) {
                            if let Some(here) = least[t][*a] {
                                changed |= lower(&mut least[t][*b], here + cost(k));
                            }
                        }
                    }
                    for (k, (a, b)) in arcs.iter().enumerate().filter(|x| late[x.0] > 0 && t + late[x.0] < count) {
                        if let Some(here) = least[t][*a] {
                            lower(&mut least[t + late[k]][*b], here + cost(k));
                        }
                    }
                }
                for t in 0..count {
                    let turn = if *back { count - 1 - t } else { t };
                    for (rank, root) in net.servers.iter().enumerate() {
                        paid[turn][rank] = paid[turn][rank].and_then(|sum| Some(sum + least[t][*root]?));
                    }
                }
            }
        }
        let best: Vec<Option<i128>> = (0..n).map(|root| paid.iter().filter_map(|row| row[root]).min()).collect();
        let due = if both {
            best.into_iter().flatten().min().map(Frac::whole)
        } else {
            best.into_iter().sum::<Option<i128>>().map(|sum| Frac::whole(sum).per(&Frac::whole(n as i128)).unwrap())
        };
        let Some(due) = due else { return Ok(length) };
        let charges: Vec<Frac> = (0..net.ends.len())
            .map(|k| net.rate[k].times(&Frac::whole(dearest.iter().map(|row| row[k]).sum())))
            .collect();
        let charged = total(&charges);
        if !charged.positive() {
            return Ok(zero());
        }
        Ok(length.min(self.bytes.times(&due).times(&Frac::whole(count as i128)).per(&charged)?))
    }

    /// Whether it applies to a schedule, and its statement.
    fn of(&self, plan: &Plan) -> (bool, String) {
        let mut reasons: BTreeSet<Liberty> = self.forbids.intersection(&plan.liberties).copied().collect();
        if self.forbids.contains(&ServersRootFewerPieces) && plan.pieces.iter().zip(&self.pieces).any(|(a, b)| a < b) {
            reasons.insert(ServersRootFewerPieces);
        }
        if self.trees.as_ref().is_some_and(|trees| !trees.hold(self.net, plan)) {
            reasons.insert(TransfersLeaveTheTrees);
        }
        if !reasons.is_empty() {
            let reasons: Vec<&str> = reasons.into_iter().map(Liberty::words).collect();
            return (false, format!("but not of this schedule: {}", reasons.join(" and ")));
        }
        let ready: Vec<f64> = self.ready.iter().map(Frac::float).collect();
        let unit = if self.asked.demand { 1.0 } else { self.bytes.float() };
        let time = if self.rounds { plan.rounds as f64 } else { plan.seconds(self.net, unit, &ready) };
        let gap = time / self.least.float() - 1.0;
        if gap < -1e-9 {
            return (false, "refused: it proves more than the schedule takes".into());
        }
        let among = if self.forbids.is_empty() { "" } else { " among such schedules" };
        let near = if gap < 1e-9 { format!("optimal in {}{among}", self.unit) } else { format!("within {:.3} %", 100.0 * gap) };
        (true, format!("the schedule takes {time} {}: {near}", self.unit))
    }
}

// ---------------------------------------------------------------------------------- refutations

/// The link directions that the pieces of a root take; reversed for a reduce-scatter.
struct Trees {
    back: bool,
    /// The node from which given trees reach each node; empty for all shortest paths.
    before: Vec<Vec<Option<usize>>>,
    /// By root, in order of id, and link.
    allowed: Vec<Vec<bool>>,
}

impl Trees {
    fn new(data: &Json, net: &Network, back: bool) -> Res<Trees> {
        let arcs = net.turned(back);
        if *data == Json::Text("shortest".into()) {
            let one = vec![Frac::whole(1); arcs.len()];
            let allowed = net.servers.iter().map(|root| {
                let away = net.least(&[*root], &one, back, &|_| true);
                let next = |a: usize| away[a].as_ref().map(|x| x.plus(&one[0]));
                arcs.iter().map(|(a, b)| away[*b].is_some() && away[*b] == next(*a)).collect()
            });
            return Ok(Trees { back, before: vec![], allowed: allowed.collect() });
        }
        let rows = data.list()?;
        need(rows.len() >= net.servers.len(), "trees: not of each server")?;
        let (mut before, mut allowed) = (vec![], vec![]);
        for row in &rows[..net.servers.len()] {
            let nodes: Vec<i128> = row.list()?.iter().map(Json::int).collect::<Res<_>>()?;
            need(nodes.len() >= net.size, "trees: not of each node")?;
            let taken: Vec<bool> = arcs.iter().map(|(a, b)| nodes[*b] == *a as i128).collect();
            let mut tree = vec![None; net.size];
            arcs.iter().zip(&taken).filter(|x| *x.1).for_each(|((a, b), _)| tree[*b] = Some(*a));
            before.push(tree);
            allowed.push(taken);
        }
        Ok(Trees { back, before, allowed })
    }

    /// Whether a schedule's transfers keep to them.
    fn hold(&self, net: &Network, plan: &Plan) -> bool {
        plan.transfers.iter().all(|one| one.links.iter().all(|k| self.allowed[net.rank[plan.root[one.piece]]][*k]))
    }
}

const LARGEST: u128 = 1 << 24;
const YES: i32 = 1;

/// The meaning of a variable, with numbers of pieces, places, channels, rounds, counters in the order of the docs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    Holds(usize, usize, usize),
    Sent(usize, usize, usize),
    Used(usize, usize, usize),
    Joins(usize, usize, usize),
    Within(usize, usize, usize, usize),
    Brought(usize, usize, usize),
    Until(usize, usize, usize),
    Among(usize, usize, usize, usize, i64),
}

/// docs/concepts/refutations.md: the rules of a schedule of some number of rounds, in clauses and in order.
struct Formula<'a> {
    net: &'a Network,
    rounds: usize,
    arcs: Vec<(usize, usize)>,
    allowed: Option<&'a Vec<Vec<bool>>>,
    /// [pieces] rank of each root.
    root: Vec<usize>,
    /// (link, number of the channel in it), by ends.
    channels: Vec<(usize, u64)>,
    into: Vec<Vec<usize>>,
    out_of: Vec<Vec<usize>>,
    variables: HashMap<Name, i32>,
    known: HashMap<Name, i32>,
    clauses: Vec<Vec<i32>>,
}

/// Pieces that are counted as they enter a set, or as they cross a link to their destination.
struct Counter {
    key: usize,
    over: bool,
    /// (piece, servers; the piece must be at one of them)
    items: Vec<(usize, Vec<usize>)>,
    ways: Vec<usize>,
}

impl<'a> Formula<'a> {
    fn new(net: &'a Network, back: bool, rounds: usize, pieces: &[u128], trees: Option<&'a Trees>, counters: &Json) -> Res<Formula<'a>> {
        let arcs = net.turned(back);
        let room: u128 = net.room.iter().map(|x| *x as u128).sum();
        let count: u128 = pieces.iter().fold(0, |sum, x| sum.saturating_add(*x));
        let size = room.saturating_mul(rounds as u128).saturating_mul(count);
        need(0 < size && size < LARGEST, "question: pieces, or too large")?;
        let root = pieces.iter().enumerate().flat_map(|(rank, n)| vec![rank; *n as usize]).collect();
        let mut order: Vec<usize> = (0..arcs.len()).collect();
        order.sort_by_key(|k| arcs[*k]);
        let channels: Vec<(usize, u64)> = order.iter().flat_map(|k| (0..net.room[*k]).map(move |n| (*k, n))).collect();
        let at = |side: fn(&(usize, usize)) -> usize| -> Vec<Vec<usize>> {
            let those = |v: usize| (0..channels.len()).filter(|c| side(&arcs[channels[*c].0]) == v).collect();
            (0..net.size).map(those).collect()
        };
        let (into, out_of) = (at(|ends| ends.1), at(|ends| ends.0));
        let mut formula = Formula {
            net, rounds, arcs, allowed: trees.map(|trees| &trees.allowed), root, channels, into, out_of,
            variables: HashMap::new(), known: HashMap::new(), clauses: vec![vec![YES]],
        };
        for t in 0..rounds {
            formula.carried(t);
            formula.received(t);
            for switch in (0..net.size).filter(|v| !net.is_server[*v]) {
                formula.switched(switch, t);
            }
        }
        formula.numbered();
        formula.counted(counters)?;
        Ok(formula)
    }

    fn new_variable(&mut self, name: Name) -> i32 {
        let next = self.variables.len() as i32 + 2;
        *self.variables.entry(name).or_insert(next)
    }

    fn add(&mut self, literals: &[i32]) {
        let mut clause: Vec<i32> = vec![];
        for x in literals.iter().filter(|x| **x != -YES) {
            if *x == YES || literals.contains(&-x) {
                return;
            }
            if !clause.contains(x) {
                clause.push(*x);
            }
        }
        self.clauses.push(clause);
    }

    /// A literal that is true exactly if one of some is.
    fn either(&mut self, name: Name, literals: &[i32]) -> i32 {
        if let Some(found) = self.known.get(&name) {
            return *found;
        }
        let mut some: Vec<i32> = vec![];
        literals.iter().filter(|x| **x != -YES).for_each(|x| if !some.contains(x) { some.push(*x) });
        let found = match some[..] {
            _ if some.contains(&YES) => YES,
            [] => -YES,
            [only] => only,
            _ => {
                let found = self.new_variable(name);
                let mut clause = vec![-found];
                clause.extend(&some);
                self.add(&clause);
                some.iter().for_each(|x| self.add(&[found, -x]));
                found
            }
        };
        self.known.insert(name, found);
        found
    }

    fn holds(&mut self, p: usize, v: usize, t: usize) -> i32 {
        if self.net.rank[v] == self.root[p] || t == self.rounds {
            YES
        } else if t == 0 {
            -YES
        } else {
            self.new_variable(Name::Holds(p, v, t))
        }
    }

    fn sent(&mut self, p: usize, c: usize, t: usize) -> i32 {
        let (link, rank) = (self.channels[c].0, self.root[p]);
        let home = self.arcs[link].1 == self.net.servers[rank];
        if home || self.allowed.is_some_and(|allowed| !allowed[rank][link]) {
            return -YES;
        }
        self.new_variable(Name::Sent(p, c, t))
    }

    /// A channel carries one of the first n pieces.
    fn used(&mut self, n: usize, c: usize, t: usize) -> i32 {
        if n == 0 { -YES } else { self.new_variable(Name::Used(n, c, t)) }
    }

    fn carried(&mut self, t: usize) {
        for c in 0..self.channels.len() {
            for p in 0..self.root.len() {
                let sent = self.sent(p, c, t);
                let (used, before) = (self.used(p + 1, c, t), self.used(p, c, t));
                self.add(&[-sent, used]);
                self.add(&[-before, used]);
                self.add(&[-sent, -before]);
                self.add(&[-used, before, sent]);
                if self.channels[c].1 > 0 {
                    let first = self.used(p + 1, c - 1, t);
                    self.add(&[-sent, first]);
                }
            }
        }
    }

    fn received(&mut self, t: usize) {
        for p in 0..self.root.len() {
            for v in self.net.servers.clone() {
                let (before, after) = (self.holds(p, v, t), self.holds(p, v, t + 1));
                let came: Vec<i32> = self.into[v].clone().into_iter().map(|c| self.sent(p, c, t)).collect();
                self.add(&[-before, after]);
                self.add(&[&[-after, before], &came[..]].concat());
                for x in &came {
                    self.add(&[-x, -before]);
                    self.add(&[-x, after]);
                }
                for (i, x) in came.iter().enumerate() {
                    came[i + 1..].iter().for_each(|y| self.add(&[-x, -y]));
                }
                for c in self.out_of[v].clone() {
                    let sent = self.sent(p, c, t);
                    self.add(&[-sent, before]);
                }
            }
        }
    }

    fn switched(&mut self, switch: usize, t: usize) {
        let ends = |formula: &Self, c: usize| formula.arcs[formula.channels[c].0];
        for out in self.out_of[switch].clone() {
            let beyond = ends(self, out).1;
            let ways: Vec<usize> = self.into[switch].iter().copied().filter(|c| ends(self, *c).0 != beyond).collect();
            let joins: Vec<i32> = ways.iter().map(|c| self.new_variable(Name::Joins(*c, out, t))).collect();
            for p in 0..self.root.len() {
                let sent = self.sent(p, out, t);
                let came: Vec<i32> = ways.iter().map(|c| self.sent(p, *c, t)).collect();
                self.add(&[&[-sent], &joins[..]].concat());
                self.add(&[&[-sent], &came[..]].concat());
                joins.iter().zip(&came).for_each(|(joined, x)| self.add(&[-sent, -joined, *x]));
            }
        }
        for c in self.into[switch].clone() {
            let source = ends(self, c).0;
            let ways: Vec<usize> = self.out_of[switch].iter().copied().filter(|out| ends(self, *out).1 != source).collect();
            let joins: Vec<i32> = ways.iter().map(|out| self.new_variable(Name::Joins(c, *out, t))).collect();
            for (i, x) in joins.iter().enumerate() {
                joins[i + 1..].iter().for_each(|y| self.add(&[-x, -y]));
            }
        }
    }

    fn numbered(&mut self) {
        for p in 1..self.root.len() {
            if self.root[p - 1] == self.root[p] {
                let first = self.net.servers[(self.root[p] == 0) as usize];
                for t in 1..self.rounds {
                    let (later, sooner) = (self.holds(p, first, t), self.holds(p - 1, first, t));
                    self.add(&[-later, sooner]);
                }
            }
        }
    }

    /// Whether a piece can reach a node only over a link, from any server that may have it.
    fn forced(&self, p: usize, mut node: usize, link: usize) -> bool {
        let mut passed: Vec<usize> = vec![];
        loop {
            let free = |k: &usize| self.allowed.is_none_or(|allowed| allowed[self.root[p]][*k]);
            let ways: Vec<usize> = (0..self.arcs.len()).filter(|k| self.arcs[*k].1 == node && free(k)).collect();
            match ways[..] {
                [only] if !passed.contains(&only) => {
                    passed.push(only);
                    node = self.arcs[only].0;
                }
                _ => break,
            }
            if self.net.is_server[node] {
                break;
            }
        }
        passed.contains(&link)
    }

    fn counted(&mut self, data: &Json) -> Res<()> {
        let list = data.list()?;
        need(list.len() <= self.net.size, "counters: too many")?;
        let mut keys: Vec<(Set, Option<usize>)> = vec![];
        let mut left = LARGEST as i128;
        for one in list {
            need(matches!(one, Json::Object(_)), "counters: not a set of nodes")?;
            let inside: Set = one.find("nodes").map_or(Ok(vec![]), |x| x.indices(self.net.size))?.into_iter().collect();
            let link = match one.find("link").map(|x| x.indices(self.net.size)).transpose()? {
                Some(ends) if !ends.is_empty() => {
                    need(ends.len() == 2, "counters: not a link")?;
                    Some(self.arcs.iter().position(|x| *x == (ends[0], ends[1])).ok_or("counters: not a link")?)
                }
                _ => None,
            };
            let key = (inside.clone(), link);
            let known = keys.iter().position(|x| *x == key).unwrap_or(keys.len());
            keys.push(key);
            let servers = self.net.servers.clone();
            let pieces = 0..self.root.len();
            let items: Vec<(usize, Vec<usize>)> = match link {
                Some(link) => pieces
                    .flat_map(|p| servers.iter().map(move |v| (p, *v)))
                    .filter(|(p, v)| self.net.rank[*v] != self.root[*p] && self.forced(*p, *v, link))
                    .map(|(p, v)| (p, vec![v]))
                    .collect(),
                None => {
                    let some: Vec<usize> = servers.iter().copied().filter(|v| inside.contains(v)).collect();
                    need(!some.is_empty(), "counters: no server")?;
                    pieces.filter(|p| !inside.contains(&servers[self.root[*p]])).map(|p| (p, some.clone())).collect()
                }
            };
            let enters = |c: &usize| match link {
                Some(link) => self.channels[*c].0 == link,
                None => {
                    let (a, b) = self.arcs[self.channels[*c].0];
                    !inside.contains(&a) && inside.contains(&b)
                }
            };
            let ways: Vec<usize> = (0..self.channels.len()).filter(enters).collect();
            need(!items.is_empty() && !ways.is_empty() && (link.is_none() || ways.len() == 1), "counters: of none")?;
            left -= (items.len() * items.len() * (1 + self.rounds * ways.len())) as i128;
            need(left >= 0, "counters: too many")?;
            let counter = Counter { key: known, over: link.is_some(), items, ways };
            let (most, width) = (counter.items.len(), counter.ways.len());
            for t in (0..self.rounds).rev() {
                self.brought_until(&counter, most, t, 0);
                for n in (0..width).rev() {
                    let least = most as i64 - ((self.rounds - t) * width) as i64 + n as i64;
                    self.among(&counter, t, n, most, least);
                }
            }
        }
        Ok(())
    }

    /// Channel n, counted from 0, brings item i, counted from 1, in round t.
    fn brought(&mut self, counter: &Counter, i: usize, t: usize, n: usize) -> i32 {
        if !counter.over {
            return self.sent(counter.items[i - 1].0, counter.ways[n], t);
        }
        let (before, after) = (self.within(counter, i, t, 0), self.within(counter, i, t + 1, 0));
        -self.either(Name::Brought(counter.key, i, t), &[before, -after])
    }

    /// It brings one of the first i.
    fn brought_until(&mut self, counter: &Counter, i: usize, t: usize, n: usize) -> i32 {
        if !counter.over {
            let first = if i > 0 { counter.items[i - 1].0 + 1 } else { 0 };
            return self.used(first, counter.ways[n], t);
        }
        if i == 0 {
            return -YES;
        }
        let (before, now) = (self.brought_until(counter, i - 1, t, n), self.brought(counter, i, t, n));
        self.either(Name::Until(counter.key, i, t), &[before, now])
    }

    /// Item i is inside before round t, or enters in it by the first n channels.
    fn within(&mut self, counter: &Counter, i: usize, t: usize, n: usize) -> i32 {
        let name = Name::Within(counter.key, i, t, n);
        if let Some(found) = self.known.get(&name) {
            return *found;
        }
        let some: Vec<i32> = if n > 0 {
            vec![self.within(counter, i, t, n - 1), self.brought(counter, i, t, n - 1)]
        } else {
            let (p, servers) = &counter.items[i - 1];
            servers.iter().map(|v| self.holds(*p, *v, t)).collect()
        };
        self.either(name, &some)
    }

    /// At least k of the first i are.
    fn among(&mut self, counter: &Counter, t: usize, n: usize, i: usize, k: i64) -> i32 {
        if k <= 0 || k > i as i64 {
            return if k <= 0 { YES } else { -YES };
        }
        let name = Name::Among(counter.key, t, n, i, k);
        if let Some(found) = self.known.get(&name) {
            return *found;
        }
        let last = self.within(counter, i, t, n);
        let (fewer, less) = (self.among(counter, t, n, i - 1, k), self.among(counter, t, n, i - 1, k - 1));
        let found = match last {
            YES => less,
            _ if last == -YES => fewer,
            _ => {
                let found = self.new_variable(name);
                self.add(&[-found, fewer, last]);
                self.add(&[-found, fewer, less]);
                self.add(&[found, -fewer]);
                self.add(&[found, -last, -less]);
                found
            }
        };
        self.known.insert(name, found);
        found
    }
}

/// Whether LRAT lines derive the empty clause from given clauses: each must be a conflict by its hints.
fn derived(clauses: Vec<Vec<i32>>, lines: &str) -> Res<()> {
    let mut last = clauses.len() as i64;
    let mut known: HashMap<i64, Vec<i32>> = clauses.into_iter().enumerate().map(|(k, x)| (k as i64 + 1, x)).collect();
    for line in lines.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let integer = |word: &&str| word.parse::<i32>().map_err(|_| "proof: not a number".to_string());
        if words.get(1) == Some(&"d") {
            for word in &words[2..words.len() - 1] {
                known.remove(&(integer(word)? as i64));
            }
            continue;
        }
        let numbers: Vec<i32> = words.iter().map(integer).collect::<Res<_>>()?;
        let end = numbers.iter().position(|x| *x == 0).ok_or("proof: a line without end")?;
        let name = numbers[0] as i64;
        need(name > last && end > 0 && end + 1 < numbers.len() && numbers[numbers.len() - 1] == 0, "proof: a line")?;
        let clause = numbers[1..end].to_vec();
        let mut holds: HashSet<i32> = clause.iter().map(|x| -x).collect();
        let mut conflict = false;
        for hint in &numbers[end + 1..numbers.len() - 1] {
            let hinted = known.get(&(*hint as i64)).ok_or("proof: no such clause")?;
            let mut open = hinted.iter().filter(|x| !holds.contains(&-**x));
            let (unit, more) = (open.next().copied(), open.next().is_some());
            need(!conflict && !more, "proof: a hint is no unit")?;
            match unit {
                Some(x) => _ = holds.insert(x),
                None => conflict = true,
            }
        }
        need(conflict, "proof: a clause does not follow")?;
        if clause.is_empty() {
            return Ok(());
        }
        known.insert(name, clause);
        last = name;
    }
    Err("proof: it does not derive the empty clause".into())
}

/// A proof's text, out of base64 and xz, which the program `xz` unpacks: its output is checked like
/// anything else.
fn proof_lines(packed: &str, hash: &str) -> Res<String> {
    let mut bytes = vec![];
    for four in packed.as_bytes().chunks(4) {
        let padding = four.iter().rev().take_while(|c| **c == b'=').count();
        need(four.len() == 4 && padding < 3 && (padding == 0 || bytes.len() / 3 == packed.len() / 4 - 1), "proof: base64")?;
        let mut value = 0u32;
        for c in &four[..4 - padding] {
            let digit = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return Err("proof: base64".into()),
            };
            value = value << 6 | digit as u32;
        }
        value <<= 6 * padding;
        bytes.extend(&value.to_be_bytes()[1..4 - padding]);
    }
    let piped = Stdio::piped;
    let command = Command::new("xz").args(["-dc", "--memlimit-decompress=1GiB"]).stdin(piped()).stdout(piped()).stderr(Stdio::null()).spawn();
    let mut child = command.map_err(|_| "not checked: the program xz is not there")?;
    let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let mut text = vec![];
    let read = output.take(LARGEST as u64 * 8).read_to_end(&mut text);
    let (_, _, _) = (child.kill(), child.wait(), writer.join());
    read.map_err(|e| e.to_string())?;
    need(sha256(&text) == hash, "proof: another one than its sha256 says")?;
    String::from_utf8(text).map_err(|e| e.to_string())
}

// ------------------------------------------------------------------------------------------ files

/// The findings about a file: whether each part of it holds, and what was found.
fn check(text: &[u8], adding: bool) -> Res<Vec<(bool, String)>> {
    let data = Parser::parsed(text)?;
    let net = Network::new(data.get("topology")?)?;
    let asked = Asked::new(data.get("collective")?.text()?, data.find("demand"), &net)?;
    let mut found = vec![];
    let mut plan = None;
    if data.find("transfers").is_some() {
        match Plan::new(&data, &net, &asked, adding) {
            Err(why) => return Ok(vec![(false, format!("schedule: invalid: {why}"))]),
            Ok(valid) => {
                let text = format!("schedule: valid: {}, {} rounds, {} transfers", asked.name, valid.rounds, valid.transfers.len());
                found.push((true, text));
                plan = Some(valid);
            }
        }
    }
    let none = vec![];
    let certificates = data.find("certificates").map_or(Ok(&none[..]), Json::list)?;
    for (number, one) in certificates.iter().enumerate() {
        let said = quietly(|| {
            let proof = Proof::new(one, &net, &asked)?;
            let (good, text) = plan.as_ref().map_or((true, String::new()), |plan| proof.of(plan));
            let text = if text.is_empty() { text } else { format!("; {text}") };
            Ok((good, format!("proved for {}: at least {} {}{text}", proof.holds_for(), proof.least.float(), proof.unit)))
        });
        let (good, text) = said.unwrap_or_else(|why| (false, format!("refused: {why}")));
        found.push((good, format!("certificate {number}: {text}")));
    }
    Ok(found)
}

/// A failure during the check means that it is not accepted.
fn quietly<T>(what: impl FnOnce() -> Res<T>) -> Res<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)).unwrap_or(Err("it does not make sense".into()))
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let (options, paths): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|x| x.starts_with("--"));
    let adding = options.iter().any(|x| x == "--aggregating-switches");
    if options.iter().any(|x| x == "--lines") {
        let mut out = std::io::stdout().lock();
        for line in std::io::stdin().lock().split(b'\n') {
            let found = quietly(|| check(&line.map_err(|e| e.to_string())?, adding));
            let marks: String = found.unwrap_or(vec![(false, String::new())]).iter().map(|x| if x.0 { '1' } else { '0' }).collect();
            writeln!(out, "{marks}").unwrap();
        }
        return;
    }
    const USAGE: &str = "gradweave_check [--aggregating-switches] FILE.json|-";
    if std::env::args().any(|x| x == "--help" || x == "-h") {
        println!("{USAGE}\n\nChecks a schedule and its certificates. Exit status: 0 all is accepted, 1 not all, 2 no such file.");
        return;
    }
    let known = ["--aggregating-switches"];
    if paths.len() != 1 || options.iter().any(|x| !known.contains(&x.as_str())) {
        eprintln!("{USAGE}");
        std::process::exit(2);
    }
    let mut text = vec![];
    let read = match paths[0].as_str() {
        "-" => std::io::stdin().read_to_end(&mut text).map(|_| ()),
        path => std::fs::read(path).map(|content| text = content),
    };
    let found = read.map_err(|e| e.to_string()).and_then(|_| quietly(|| check(&text, adding)));
    match found {
        Err(why) => {
            eprintln!("{}: not checked: {why}", paths[0]);
            std::process::exit(2);
        }
        Ok(parts) => {
            parts.iter().for_each(|(_, text)| println!("{text}"));
            std::process::exit(!parts.iter().all(|x| x.0) as i32);
        }
    }
}
