"""Each format, on a few lines as its real files have them; how formats are guessed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import duckdb
import pytest
from contracts.dataset_contract import DatasetContract, FormatContract, Write, events_of, rows_of

from streamer.errors import SettingsError, SourceError
from streamer.replay.datasets import DATASETS, LogSettings, open_log


class TestGowalla(DatasetContract):
    name, file = "gowalla", "loc-gowalla_totalCheckins.txt"
    sample = (
        "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
        "0\t2010-10-18T22:17:43Z\t30.2691029532\t-97.7493953705\t420315\n"
        "1\t2010-10-17T23:42:03Z\t30.2557309927\t-97.7633857727\t316637\n"
    )
    events: ClassVar = [("1", "316637", 1287358923.0), ("0", "420315", 1287440263.0), ("0", "22847", 1287532527.0)]
    malformed, reason = "1\tsoon\t1\t2\t3", "bad_timestamp"

    def test_coordinates_are_features_on_demand(self, write):
        path = write(self.file, self.sample)
        assert events_of(path).item_features is None
        events = events_of(path, item_features=("latitude:float", "longitude:float"))
        assert events.item_features[0] == {"latitude": 30.2557309927, "longitude": -97.7633857727}


class TestTmall(DatasetContract):
    name, file = "tmall", "user_log_format1.csv"
    sample = (
        "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type\n"
        "234512,996875,1271,4044,2661,0511,1\n"
        "328862,323294,833,2882,2661,829,0\n"
        "328862,844400,1271,2882,,0830,2\n"
        "234512,575153,1271,2882,2661,1111,3\n"
    )
    events: ClassVar = [
        ("234512", "996875", 1399766400.0),
        ("328862", "323294", 1409270400.0),
        ("328862", "844400", 1409356800.0),
        ("234512", "575153", 1415664000.0),
    ]
    malformed, reason = "1,2,3,4,5,1332,0", "bad_timestamp"

    def test_category_seller_and_brand_are_features(self, write):
        features = events_of(write(self.file, self.sample)).item_features
        assert features[1:3] == [
            {"cat_id": "833", "seller_id": "2882", "brand_id": "2661"},
            {"cat_id": "1271", "seller_id": "2882"},
        ]

    @pytest.mark.parametrize(
        ("types", "items"),
        [
            (("purchase",), {"844400"}),
            (("2",), {"844400"}),
            (("Click", "favourite"), {"323294", "575153"}),
            (("cart",), {"996875"}),
        ],
    )
    def test_actions_are_chosen_by_name_or_number(self, write, types, items):
        assert set(events_of(write(self.file, self.sample), event_types=types).items) == items

    def test_action_that_does_not_exist_is_reported_with_those_that_do(self, write):
        with pytest.raises(SettingsError, match=r"no type 'sell', only click, cart"):
            events_of(write(self.file, self.sample), event_types=("sell",))

    def test_header_may_be_missing_and_the_seller_be_a_merchant(self, write):
        self.check(write(self.file, self.sample.split("\n", 1)[1]))
        self.check(write(self.file, self.sample.replace("seller_id", "merchant_id")))


class TestTaFengMerged(DatasetContract):
    name, file = "ta-feng", "ta_feng_all_months_merged.csv"
    sample = (
        '"TRANSACTION_DT","CUSTOMER_ID","AGE_GROUP","PIN_CODE","PRODUCT_SUBCLASS","PRODUCT_ID","AMOUNT","ASSET","SALES_PRICE"\n'
        '"11/2/2000","01104905","45-49","115","110411","4710199010372","2","24","30"\n'
        '"11/1/2000","01849332","45-49","Others","120108","0078895770025","1","32","38"\n'
    )
    events: ClassVar = [("01849332", "0078895770025", 973036800.0), ("01104905", "4710199010372", 973123200.0)]
    malformed, reason = '"never","1","2","3","4","5","6","7","8"', "bad_timestamp"

    def test_features_are_without_quotes(self, write):
        events = events_of(write(self.file, self.sample))
        assert events.item_features[0] == {"PRODUCT_SUBCLASS": "120108"}
        assert events.user_features[0] == {"AGE_GROUP": "45-49", "PIN_CODE": "Others"}


class TestTaFengMonth(DatasetContract):
    name, file = "ta-feng", "D11"
    header = "日期;會員卡號;年齡;區域;商品分類;商品編碼;數量;成本;銷售\n".encode("big5")
    sample = header + b"2000-11-01 00:00:00;00046855  ;D ;E ;110411;4710085120468;3;51;57\n"
    events: ClassVar = [("00046855", "4710085120468", 973036800.0)]
    malformed, reason = "2000-11-01 00:00:00;  ;D ;E ;110411;4710085120468;3;51;57", "missing_user_id"

    def test_months_of_a_directory_or_a_pattern_are_one_log(self, write):
        write("D01", self.header + b"2001-01-13 00:00:00;00539166  ;E ;F ;130315;4714981010038;2;56;48\n")
        path = write("D11", self.sample)
        for where in (path.parent, path.parent / "D*"):
            events = events_of(where, "ta-feng")
            assert events.users == ["00046855", "00539166"]
            assert events.timestamps_s == [973036800.0, 979344000.0]
            assert events.user_features[0] == {"AGE_GROUP": "D", "PIN_CODE": "E"}


class TestAmazon(DatasetContract):
    name, file = "amazon", "ratings_Books.csv"
    options: ClassVar = {"min_rating": 1}
    sample = "A1N4O8VOJZTDVB,B004A9SDD8,4.0,1383350400\nA2HQWU6HUKIEC7,0786280220,1.0,1376006400\n"
    events: ClassVar = [("A2HQWU6HUKIEC7", "0786280220", 1376006400.0), ("A1N4O8VOJZTDVB", "B004A9SDD8", 1383350400.0)]
    malformed, reason = "A1,B004A9SDD8,good,1383350400", "bad_rating"

    def test_item_may_stand_first(self, write):
        rows = [line.split(",") for line in self.sample.split()]
        self.check(write(self.file, "".join(f"{item},{user},{rest[0]},{rest[1]}\n" for user, item, *rest in rows)))

    def test_header_and_milliseconds_are_read(self, write):
        path = write("Toys.csv", "user_id,parent_asin,rating,timestamp\nAGKASB,B006GBITXC,3.0,1452647382000\n")
        with open_log(path, "amazon", LogSettings(min_rating=0)) as log:
            assert rows_of(log) == [("AGKASB", "B006GBITXC", 1452647382.0)]

    def test_ratings_above_the_average_of_their_user_count_unless_there_is_a_threshold(self, write):
        lines = ["u1,B000000001,5.0,1", "u1,B000000002,3.0,2", "u1,B000000003,4.0,3", "u2,B000000001,5.0,4"]
        path = write(self.file, "\n".join(lines))
        assert [(user, item) for user, item, _ in rows_of(open_log(path))] == [("u1", "B000000001")]
        assert len(events_of(path, min_rating=4)) == 3

    def test_reviews_as_json_are_compared_with_the_average_too(self, write):
        line = '{{"reviewerID": "A1", "asin": "B00000000{}", "overall": {}, "unixReviewTime": 1252800000}}\n'
        events = events_of(write("reviews.json.gz", line.format(1, 5.0) + line.format(2, 2.0)), "amazon")
        assert events.items == ["B000000001"]

    def test_reviews_as_json_have_the_same_item_as_csv_and_need_a_rating(self, write):
        line = '{"parent_asin": "B000000001", "asin": "B000000009", "user_id": "A1", "timestamp": 1400000000000%s}\n'
        assert events_of(write("a.jsonl", line % ', "rating": 5'), "amazon", min_rating=0).items == ["B000000001"]
        with pytest.raises(SourceError, match="no column 'rating' for rating"):
            open_log(write("b.jsonl", line % ""), "amazon")


class TestEchoNest(DatasetContract):
    name, file = "echonest", "train_triplets.txt"
    sample = "b80344d0\tSOAKIMP12A8C130995\t1\nb80344d0\tSOBBMDR12A8C13253B\t7\n"
    events: ClassVar = [("b80344d0", "SOAKIMP12A8C130995", None), ("b80344d0", "SOBBMDR12A8C13253B", None)]
    malformed, reason = "b80344d0\tSOBBMDR12A8C13253B", "missing_columns"

    def test_plays_are_a_threshold(self, write):
        assert events_of(write(self.file, self.sample), min_rating=2).items == ["SOBBMDR12A8C13253B"]


class TestRecBole(DatasetContract):
    name, file = "recbole", "x.inter"
    sample = (
        "user_id:token\titem_id:token\trating:float\ttimestamp:float\tshop:token\n1\t7\t4.0\t20\ts\n2\t8\t1.0\t10\tt\n"
    )
    events: ClassVar = [("2", "8", 10.0), ("1", "7", 20.0)]
    malformed, reason = "1\t7\t4.0\tnever\ts", "bad_timestamp"
    item = "item_id:token\tprice:float\tclass:token_seq\n7\t9.5\tjazz blues\n8\t\tpop\n"

    @pytest.fixture
    def path(self, write: Write) -> Path:
        write("x.item.gz", self.item)
        write("x.user", "user_id:token\tage:token\n1\t31\n")
        return write("x.inter.gz", self.sample)

    def test_features_come_from_the_log_and_from_the_files_beside_it(self, path):
        events = events_of(path)
        assert events.item_features == [
            {"shop": "t", "class": "pop"},
            {"shop": "s", "price": 9.5, "class": "jazz blues"},
        ]
        assert events.user_features == [None, {"age": "31"}]

    def test_features_are_only_those_asked_for(self, path):
        events = events_of(path, item_features=("class", "shop"), user_features=())
        assert events.item_features == [{"class": "pop", "shop": "t"}, {"class": "jazz blues", "shop": "s"}]
        assert events.user_features is None

    def test_column_that_differs_from_item_to_item_is_not_a_feature(self, write):
        rows = "".join(f"{n}\ttitle {n}\tg{n % 3}\n" for n in range(30))
        write("x.item", "item_id:token\ttitle:token_seq\tgenre:token\n" + rows)
        events = events_of(write("x.inter", "user_id:token\titem_id:token\n1\t7\n"), "recbole")
        assert events.item_features == [{"genre": "g1"}]


class TestLightGcn(DatasetContract):
    name, file = "lightgcn", "train.txt"
    sample = "0 1 2 3\n1\n2  3\t4 \n2 ü\n"
    events: ClassVar = [*[("0", item, None) for item in "123"], *[("2", item, None) for item in "34ü"]]
    malformed, reason = b"3 \xff", "invalid_encoding"

    def test_directory_is_train_and_test_together(self, write):
        write("test.txt", "0 9\n")
        path = write("train.txt", "0 1 2\n")
        write("user_list.txt", "org_id remap_id\n")
        assert sorted(events_of(path.parent, "lightgcn").items) == ["1", "2", "9"]


class TestMovieLens100k(DatasetContract):
    name, file = "movielens", "u.data"
    sample = "196\t242\t3\t881250949\n186\t302\t4\t891717742\n"
    events: ClassVar = [("196", "242", 881250949.0), ("186", "302", 891717742.0)]
    malformed, reason = "196\t242\t3\tnever", "bad_timestamp"
    movie = "{}|{}|01-Jan-1995||http://us.imdb.com/M/title-exact?x|0|0|0|{}|1|{}|0|0|0|0|0|0|0|0|0|0|0|0|0\n"

    def test_genres_are_flags_in_a_file_of_their_own(self, write):
        lines = self.movie.format(242, "Misérables, Les (1995)", 1, 1) + self.movie.format(302, "Other (1995)", 0, 0)
        write("u.item", lines.encode("latin-1"))
        path = write(self.file, self.sample)
        genres = [{"genres": "Animation|Children's|Comedy"}, {"genres": "Children's"}]
        assert events_of(path).item_features == genres
        title = {"title": "Misérables, Les (1995)"}
        assert events_of(path, item_features=("title", "genres")).item_features[0] == title | genres[0]
        assert events_of(path, item_features=("title",)).item_features[0] == title

    def test_threshold_is_one_of_ratings(self, write):
        assert events_of(write(self.file, self.sample), min_rating=4).items == ["302"]


class TestMovieLens1m(TestMovieLens100k):
    file = "ratings.dat"
    sample = TestMovieLens100k.sample.replace("\t", "::")
    malformed = TestMovieLens100k.malformed.replace("\t", "::")

    def test_genres_and_people_are_features(self, write):
        write("movies.dat", "242::Les Misérables (1995)::Drama|Musical\n".encode("latin-1"))
        write("users.dat", "196::F::1::10::48067\n")
        events = events_of(write(self.file, self.sample))
        assert events.item_features == [{"genres": "Drama|Musical"}, None]
        assert events.user_features == [{"gender": "F", "age": "1", "occupation": "10"}, None]


class TestMovieLens20m(TestMovieLens100k):
    file = "ratings.csv"
    sample = "userId,movieId,rating,timestamp\n196,242,3.0,881250949\n186,302,4.0,891717742\n"
    malformed = "196,242,3,never"

    def test_titles_with_commas_and_quotes_are_read(self, write):
        write("movies.csv", 'movieId,title,genres\n242,"President, The ""x"" (1995)",Comedy|Drama\n302,A,Drama\n')
        write("tags.csv", "userId,movieId,tag,timestamp\n1,2,nice,4\n")
        events = events_of(write(self.file, self.sample).parent)
        assert events.item_features == [{"genres": "Comedy|Drama"}, {"genres": "Drama"}]


class TestCsv(DatasetContract):
    name, file, renamed = "csv", "log.csv", "log.txt"
    sample = 'user_id,item_id,timestamp\n"Doe, Jane",x,5\nbob,"a ""b""",4\n'
    events: ClassVar = [("bob", 'a "b"', 4.0), ("Doe, Jane", "x", 5.0)]
    malformed, reason = "ann,x", "missing_columns"
    own = "when,who,what,colour,price\n5,ann,x,red,1.5\n4,bob,y,,2\n"

    def test_columns_and_features_are_named_by_the_user(self, write):
        columns = {"user_id": "who", "item_id": "what", "timestamp": "when"}
        events = events_of(write("a.csv", self.own), columns=columns, item_features=("colour", "price:float"))
        assert events.users == ["bob", "ann"]
        assert events.item_features == [{"price": 2.0}, {"colour": "red", "price": 1.5}]

    def test_columns_are_counted_with_and_without_a_header(self, write):
        columns = {"user_id": "2", "item_id": "3", "timestamp": "1"}
        assert events_of(write("a.csv", self.own), "csv", columns=columns, header=True).users == ["bob", "ann"]
        assert events_of(write("a.csv", self.own.split("\n", 1)[1]), "csv", columns=columns).users == ["bob", "ann"]

    @pytest.mark.parametrize("first", ["1,2,7", "2,1,7", "3,1,2"])
    def test_first_line_with_the_numbers_of_columns_is_not_a_header(self, write, first):
        columns = {"user_id": "1", "item_id": "2", "timestamp": "3"}
        events = events_of(write("log.csv", f"{first}\nann,x,8\n"), "csv", columns=columns)
        user, item, _ = first.split(",")
        assert (events.users, events.items) == ([user, "ann"], [item, "x"])

    def test_columns_are_named_and_counted_at_once(self, write):
        path = write("log.csv", "user_id,item_id,item_id,timestamp\nann,x,y,5\n")
        for number, item in (("2", "x"), ("3", "y")):
            assert events_of(path, "csv", columns={"item_id": number}).items == [item]

    @pytest.mark.parametrize("delimiter", [",", ";", "|", "\t", "::"])
    def test_delimiter_is_seen_in_the_first_lines(self, write, delimiter):
        text = "user_id,item_id,timestamp\nann,x,5\nbob,y,4\n".replace(",", delimiter)
        assert events_of(write("log.csv", text), "csv").users == ["bob", "ann"]


class TestTsv(DatasetContract):
    name, file, renamed = "tsv", "log.tsv", "train.txt"
    sample = 'user_id\titem_id\nann\t12" single\nbob\t7" single\n'
    events: ClassVar = [("ann", '12" single', None), ("bob", '7" single', None)]
    malformed, reason = "ann\tx\ty", "too_many_columns"


class TestJsonl(DatasetContract):
    name, file, renamed = "jsonl", "log.ndjson", "log.txt"
    sample = (
        '{"user_id": 7, "item_id": "x", "timestamp": "2014-11-11T00:00:00Z", "item_features": {"n": 3, "p": 1.5}}\n'
        '{"user_id": "é", "item_id": "y", "timestamp": 1, "user": {"land": "NL"}}\n'
    )
    events: ClassVar = [("é", "y", 1.0), ("7", "x", 1415664000.0)]
    malformed, reason = "{", "not_json"

    def test_features_are_as_in_events_or_fields_of_any_depth(self, write):
        path = write(self.file, self.sample)
        assert events_of(path).item_features == [None, {"n": "3", "p": 1.5}]
        assert events_of(path, user_features=("user.land",)).user_features == [{"user.land": "NL"}, None]

    def test_line_that_is_not_an_object_or_lacks_a_field_is_malformed(self, write):
        with open_log(write(self.file, self.sample + '\n[1]\n{"user_id": 3, "timestamp": 1}\n')) as log:
            assert log.malformed.examples == [
                "row 3: not_an_event: [1]",
                'row 4: missing_item_id: {"user_id": 3, "timestamp": 1}',
            ]


def parquet(path: Path, sql: str) -> bytes:
    duckdb.connect().execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet)")
    return path.read_bytes()


class TestParquet(FormatContract):
    name, file = "parquet", "log.parquet"
    events: ClassVar = [("2", "y", 4.0), ("1", "x", 5.0)]
    rows = """SELECT user_id, item_id, {} AS timestamp, price, shop FROM (VALUES
              (1, 'x', 5, 1.5::DOUBLE, 7), (2, ' y ', 4, NULL, 8)) AS rows(user_id, item_id, s, price, shop)"""

    @pytest.fixture(autouse=True, params=["s", "s::VARCHAR", "make_timestamp(s * 1000000)", "(s + 0.0)::DOUBLE"])
    def times(self, request, tmp_path_factory):
        sql = self.rows.format(request.param)
        self.sample = parquet(tmp_path_factory.mktemp("parquet") / "x.parquet", sql)

    def test_features_follow_their_types(self, write):
        events = events_of(write(self.file, self.sample), item_features=("price", "shop"))
        assert events.item_features == [{"shop": "8"}, {"price": 1.5, "shop": "7"}]

    def test_row_without_an_item_is_counted_with_its_number(self, write, tmp_path):
        sql = "SELECT * FROM (VALUES ('a', 'x'), ('b', NULL)) AS rows(user_id, item_id)"
        with open_log(write(self.file, parquet(tmp_path / "x", sql))) as log:
            assert log.malformed.examples == ["row 2: missing_item_id: b, "]


class TestSessions(DatasetContract):
    name, file = "sessions", "x.sessions"
    sample = "i1 i2\ni2 i3 i3\n"
    events: ClassVar = [
        (session, item, 1_400_000_001.0 + n)
        for n, (session, item) in enumerate([("1", "i1"), ("1", "i2"), ("2", "i2"), ("2", "i3"), ("2", "i3")])
    ]
    malformed, reason = b"3 \xff", "invalid_encoding"


def test_every_format_has_a_contract():
    classes = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, FormatContract)]
    assert {kind.name for kind in classes if hasattr(kind, "name")} == set(DATASETS)


# guessing -------------------------------------------------------------------------------------------------------------

RATED = "user_id,item_id,timestamp,rating\nu1,i1,1500000000,5\nu1,i2,1500000001,4\nu2,i1,1500000002,3\n"


@pytest.mark.parametrize("file", ["ratings.csv", "ratings_x.csv", "u.data", "D11", "train.txt", "user_log_format1.csv"])
def test_header_that_names_user_and_item_counts_more_than_the_name_of_the_file(write, file):
    path = write(file, RATED)
    for where in (path, path.parent) if file.endswith(".csv") else (path,):
        with open_log(where) as log:
            assert (log.name, len(log), log.malformed.total) == ("csv", 3, 0)
            assert log.describe()["first_s"] == 1500000000.0


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("ratings.csv", "u1,i1,1500000000,5\nu2,i2,1500000001,4\n"),
        ("ratings_x.csv", "u1,i1,1500000000,5\nu2,i2,1500000001,4\n"),
        ("train.txt", "1\t10\t5\n1\t11\t3\n"),
        ("train_triplets.txt", "u1 i1 5\n"),
        ("loc-gowalla_totalCheckins.txt", "u1\ti1\t5\n"),
        ("log.txt", "a b c\n"),
    ],
)
def test_name_counts_only_if_the_first_lines_are_as_it_says(write, file, content):
    with pytest.raises(SourceError, match=r"cannot be guessed; name it: amazon, csv, .*tsv|no column 'user_id'"):
        open_log(write(file, content))


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("movielens", "ratings.csv", "1,10,3.5,1112486027\n1,20,4,1112484676\n"),
        ("amazon", "ratings_x.csv", "u1,short,5.0,1112486027\nu1,other,4.0,1112484676\n"),
        ("tsv", "log.txt", TestMovieLens20m.sample.replace(",", "\t")),
        ("lightgcn", "train.txt", "1 10 5\n1 11 3\n"),
        ("csv", "log.csv.gz", RATED),
        ("jsonl", "log.txt", '{"user_id": 1, "item_id": 2, "text": "' + 200_000 * "long, " + '"}\n'),
    ],
)
def test_name_or_lines_that_are_known_are_enough(write, name, file, content):
    with open_log(write(file, content)) as log:
        assert log.name == name
