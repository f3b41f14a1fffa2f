"""Published tables of wide-area networks: what joins which places, how fast, how far.

Numbers as published, typed from the sources named at each table; nothing measured here.
"""

ABILENE = """
ATLAM5 ATLA 133 9920    ATLA HSTN 1081 9920   ATLA IPLS 591 2480    ATLA WASH 901 9920
CHIN IPLS 260 9920      CHIN NYCM 1147 9920   DNVR KSCY 745 9920    DNVR SNVA 1516 9920
DNVR STTL 1573 9920     HSTN KSCY 1028 9920   HSTN LOSA 2196 9920   IPLS KSCY 903 9920
LOSA SNVA 505 9920      NYCM WASH 336 9920    SNVA STTL 1138 9920
"""
"""Two sites, km, Mbit/s. Source: SNDlib, `abilene`, pre-installed capacities and lengths."""

GEANT = """
at ch 804   at de 598   at hu 218   at ny 6802  at si 277   be fr 264   be lu 186   be nl 169
ch fr 410   ch it 250   cz de 411   cz pl 309   cz sk 290   de fr 478   de gr 1794  de ie 1088
de it 518   de nl 358   de se 1184  es fr 1054  es it 1189  es pt 503   fr lu 287   fr uk 343
gr it 1453  hr hu 304   hr si 115   hu sk 163   ie uk 463   il it 2658  il nl 3296  nl uk 359
ny uk 5575  pl se 777   pt uk 1588  se uk 1426
"""
"""Two sites, km; each link one module of 40,000 Mbit/s. Source: SNDlib, `geant`."""

GEANT_2012_SITES = """
NL 52.374 4.890    BE 50.850 4.349   DK 55.676 12.566  PL 52.417 16.967  DE 50.117 8.683
CZ 50.088 14.421   LU 49.612 6.130   FR 48.853 2.349   CH 46.948 7.447   IT 45.464 9.190
UA 50.454 30.516   MD 47.026 28.840  BG 42.698 23.324  RO 44.432 26.106  TR 39.059 34.912
GR 37.979 23.716   CY 35.167 33.367  IL 31.500 34.750  MT 35.909 14.426  BY 53.902 27.566
MK 42.000 21.433   ME 42.441 19.264  HU 47.498 19.040  SK 48.148 17.107  PT 38.717 -9.133
ES 40.417 -3.703   RS 44.804 20.465  HR 45.814 15.978  SL 46.051 14.505  AT 48.208 16.372
LT 54.900 23.900   RU 55.752 37.616  IS 64.135 -21.895 IE 53.344 -6.267  UK 51.509 -0.126
NO 62.000 10.000   SE 59.333 18.065  FI 60.451 22.269  EE 59.437 24.754  LV 56.946 24.106
"""
"""A site, degrees north, degrees east. Source: as `GEANT_2012_LINKS`."""

GEANT_2012_LINKS = """
NL BE 0      NL DK 0      NL DE 0      NL UK 2500   NL LT 2500   BE IE 0      DK IS 10000
DK NO 0      DK DE 0      DK EE 10000  DK SE 0      DK RU 10000  PL UA 1000   PL BY 1000
PL DE 10000  PL CZ 10000  PL LT 10000  DE CZ 0      DE LU 10000  DE CH 0      DE CY 1000
DE IL 2500   DE AT 10000  DE RU 10000  CZ SK 0      LU FR 10000  FR CH 0      FR ES 10000
FR UK 0      CH IT 0      CH ES 0      IT ES 10000  IT MT 1000   IT AT 0      IT GR 10000
MD RO 1000   BG TR 10000  BG MK 155    BG RO 10000  BG HU 10000  BG GR 10000  RO HU 10000
RO TR 10000  GR AT 10000  CY UK 1000   IL LT 2500   ME HR 155    HU RS 10000  HU HR 0
HU SK 0      SK AT 0      PT ES 10000  PT UK 10000  HR SL 0      SL AT 0      LT LV 10000
IS UK 2500   IE UK 10000  NO SE 0      SE FI 0      EE LV 10000
"""
"""Two sites, Mbit/s; 0 where the map shows lit fibre without a rate.

Source: The Internet Topology Zoo, `Geant2012` (29 March 2012).
"""
